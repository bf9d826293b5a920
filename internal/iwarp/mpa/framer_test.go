package mpa

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// collect returns a deliver function and what it has been given, copied.
func collect() (deliver func([]byte) error, got *[][]byte) {
	got = new([][]byte)
	return func(u []byte) error {
		*got = append(*got, bytes.Clone(u))
		return nil
	}, got
}

// TestFramerHistory sends random ULPDUs, cut at random, and wants them back.
func TestFramerHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		crc := rapid.Bool().Draw(t, "crc")
		want := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 1, 200)).Draw(t, "ulpdus")
		var stream []byte
		for _, u := range want {
			stream = appendFPDU(stream, u, crc)
		}
		f := Framer{CRC: crc}
		deliver, got := collect()
		for len(stream) > 0 {
			n := rapid.IntRange(0, len(stream)).Draw(t, "cut")
			if err := f.Feed(stream[:n], deliver); err != nil {
				t.Fatal(err)
			}
			stream = stream[n:]
			if n == 0 {
				break
			}
		}
		if err := f.Feed(stream, deliver); err != nil {
			t.Fatal(err)
		}
		if err := f.End(); err != nil {
			t.Fatal(err)
		}
		if len(want) != len(*got) {
			t.Fatalf("%d ULPDUs delivered, want %d", len(*got), len(want))
		}
		if diff := cmp.Diff(*got, want); len(want) > 0 && diff != "" {
			t.Fatalf("ULPDUs (-got +want):\n%s", diff)
		}
	})
}

// TestFramerLengths has ULPDU_Lengths at the limits, header whole and header cut.
func TestFramerLengths(t *testing.T) {
	for _, tc := range []struct {
		name   string
		least  int
		ulpdu  int
		refuse bool
	}{
		{"zero", 0, 0, true},
		{"one", 0, 1, false},
		{"zero with a least of 14", 14, 0, true},
		{"13 with a least of 14", 14, 13, true},
		{"14 with a least of 14", 14, 14, false},
		{"above the limit for senders", 14, MaxULPDU + 1, false},
		{"all ones", 14, MaxLength, false},
	} {
		for _, piece := range []int{1, 2, 1 << 20} {
			stream := appendFPDU(nil, make([]byte, tc.ulpdu), true)
			f := Framer{CRC: true, MinULPDU: tc.least}
			deliver, got := collect()
			var err error
			fed := 0
			for ; fed < len(stream) && err == nil; fed += piece {
				err = f.Feed(stream[fed:min(fed+piece, len(stream))], deliver)
			}
			if !tc.refuse {
				if err != nil || len(*got) != 1 || len((*got)[0]) != tc.ulpdu {
					t.Errorf("%s by %d: %d ULPDUs, %v", tc.name, piece, len(*got), err)
				}
				continue
			}
			wantError(t, err, CodeFPDUStart)
			if min(fed, len(stream)) > max(piece, HeaderLen) && piece < len(stream) {
				t.Errorf("%s by %d: refused after %d octets, want after the header", tc.name, piece, fed)
			}
			if len(*got) != 0 {
				t.Errorf("%s by %d: a ULPDU was delivered", tc.name, piece)
			}
		}
	}
}

// TestFramerStaysFailed: after an error nothing is delivered, whatever comes.
func TestFramerStaysFailed(t *testing.T) {
	good := appendFPDU(nil, []byte("fourteen octets"), true)
	bad := bytes.Clone(good)
	bad[5] ^= 1
	for _, piece := range []int{1, 1000} {
		f := Framer{CRC: true}
		deliver, got := collect()
		var first error
		stream := bytes.Join([][]byte{good, bad, good, good}, nil)
		for len(stream) > 0 {
			n := min(piece, len(stream))
			err := f.Feed(stream[:n], deliver)
			if first == nil {
				first = err
			} else if !errors.Is(err, first) {
				t.Fatalf("by %d: error changed from %v to %v", piece, first, err)
			}
			stream = stream[n:]
		}
		wantError(t, first, CodeCRC)
		wantError(t, f.End(), CodeCRC)
		if len(*got) != 1 {
			t.Errorf("by %d: %d ULPDUs delivered, want 1", piece, len(*got))
		}
	}
}

// TestFramerDeliverError: the receiver's error stops the stream as it is.
func TestFramerDeliverError(t *testing.T) {
	stop := errors.New("no more")
	stream := bytes.Repeat(appendFPDU(nil, []byte("ulpdu"), false), 3)
	var f Framer
	calls := 0
	deliver := func([]byte) error {
		calls++
		if calls == 2 {
			return stop
		}
		return nil
	}
	for range 2 {
		if err := f.Feed(stream, deliver); !errors.Is(err, stop) {
			t.Errorf("Feed = %v, want the receiver's error", err)
		}
	}
	if err := f.End(); !errors.Is(err, stop) || calls != 2 {
		t.Errorf("End = %v after %d calls, want the receiver's error after 2", err, calls)
	}
}

// TestFramerKeepsNothing: the caller may use its buffer again at once.
func TestFramerKeepsNothing(t *testing.T) {
	stream := appendFPDU(nil, []byte("some payload"), true)
	f := Framer{CRC: true}
	deliver, got := collect()
	buf := make([]byte, 5)
	for len(stream) > 0 {
		n := copy(buf, stream)
		stream = stream[n:]
		if err := f.Feed(buf[:n], deliver); err != nil {
			t.Fatal(err)
		}
		clear(buf)
	}
	if diff := cmp.Diff(*got, [][]byte{[]byte("some payload")}); diff != "" {
		t.Errorf("ULPDUs (-got +want):\n%s", diff)
	}
}

func TestFramerAllocs(t *testing.T) {
	stream := bytes.Repeat(appendFPDU(nil, make([]byte, 1442), true), 4)
	f := Framer{CRC: true}
	deliver := func([]byte) error { return nil }
	feed := func() {
		for b := stream; len(b) > 0; {
			n := min(1000, len(b))
			if err := f.Feed(b[:n], deliver); err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
	}
	feed()
	if n := testing.AllocsPerRun(10, feed); n != 0 {
		t.Errorf("%v allocations once the buffer has grown, want 0", n)
	}
}
