package credit

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// parity: B32
func TestRoundRobin(t *testing.T) {
	w := NewSendWindow(3, 30)
	var got []int
	for range 7 {
		if !w.Fits(10) {
			if err := w.Grant(w.Granted() + 1); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, w.Slot(w.Send(10)))
	}
	if want := []int{0, 1, 2, 0, 1, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	messages, bytes := w.Outstanding()
	if w.Sent() != 7 || w.Granted() != 4 || messages != 3 || bytes != 30 || w.Messages() != 3 || w.Bytes() != 30 {
		t.Errorf("got %+v", w)
	}
}

// With one buffer each chunk waits for the one before: the basic protocol.
// parity: B32
func TestOneBufferIsLockStep(t *testing.T) {
	s, r := NewSendWindow(1, 10), NewReceiveWindow(1, 10)
	for i := range uint64(5) {
		if !s.Fits(10) || s.Slot(s.Send(10)) != 0 {
			t.Fatalf("chunk %d does not fit", i)
		}
		if s.Fits(0) {
			t.Fatalf("chunk %d: a second one fits", i)
		}
		if err := errors.Join(r.Receive(i, 10), r.Release(i), s.Grant(r.Released())); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBytes sends until no byte is left, with slots free at both ends.
func TestBytes(t *testing.T) {
	s, r := NewSendWindow(4, 100), NewReceiveWindow(4, 100)
	if s.Fits(101) || !s.Fits(100) {
		t.Error("the limit is 100")
	}
	for _, n := range []int{60, 40, 0} {
		if !s.Fits(n) {
			t.Fatalf("%d bytes do not fit", n)
		}
		if err := r.Receive(s.Send(n), n); err != nil {
			t.Fatal(err)
		}
	}
	if s.Fits(1) || !s.Fits(0) {
		t.Error("no byte is left, and one slot is")
	}
	if err := r.Receive(3, 1); err == nil || !strings.Contains(err.Error(), "has 1 bytes, and the receiver has room for 0") {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(r.Release(0), s.Grant(r.Released())); err != nil {
		t.Fatal(err)
	}
	if !s.Fits(60) || s.Fits(61) {
		t.Error("60 bytes are released")
	}
}

func TestGrantBeyondSent(t *testing.T) {
	w := NewSendWindow(2, 2)
	w.Send(1)
	if err := w.Grant(2); err == nil || !strings.Contains(err.Error(), "a grant for 2 messages, and 1 have been sent") {
		t.Errorf("got %v", err)
	}
	if messages, bytes := w.Outstanding(); messages != 1 || bytes != 1 || w.Granted() != 0 {
		t.Errorf("the refused grant changed %+v", w)
	}
	for _, total := range []uint64{1, 0, 1} { // an old one changes nothing
		if err := w.Grant(total); err != nil || w.Granted() != 1 || !w.Fits(2) {
			t.Errorf("grant %d: %v, %+v", total, err, w)
		}
	}
}

func TestReceiveRefuses(t *testing.T) {
	w := NewReceiveWindow(2, 100)
	for _, seq := range []uint64{1, 1 << 63} {
		if err := w.Receive(seq, 0); err == nil || !strings.Contains(err.Error(), "0 is next") {
			t.Errorf("number %d: got %v", seq, err)
		}
	}
	if err := errors.Join(w.Receive(0, 1), w.Receive(1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := w.Receive(2, 0); err == nil || !strings.Contains(err.Error(), "all 2 slots are in use") {
		t.Errorf("got %v", err)
	}
	// The second message alone is not counted, because the first is older.
	if err := w.Release(1); err != nil || w.Released() != 0 || w.Idle() {
		t.Errorf("%v: %+v", err, w)
	}
	for seq, want := range map[uint64]error{1: ErrReleased, 2: ErrNotReceived, math.MaxUint64: ErrNotReceived} {
		if err := w.Release(seq); !errors.Is(err, want) {
			t.Errorf("release of %d: got %v, want %v", seq, err, want)
		}
	}
	if err := w.Release(0); err != nil || w.Released() != 2 || !w.Idle() || w.Received() != 2 {
		t.Errorf("%v: %+v", err, w)
	}
	if err := w.Release(0); !errors.Is(err, ErrReleased) {
		t.Errorf("got %v", err)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"no sender's slot":   func() { NewSendWindow(0, 1) },
		"no receiver's slot": func() { NewReceiveWindow(-1, 1) },
		"no credit":          func() { w := NewSendWindow(1, 1); w.Send(2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestExtend(t *testing.T) {
	for _, c := range []struct {
		near uint64
		low  uint32
		want uint64
	}{
		{0, 0, 0},
		{0, 7, 7},
		{7, 0, 0},
		{5, math.MaxUint32, 0}, // -1
		{1<<32 - 1, 1, 1<<32 + 1},
		{1<<32 + 1, math.MaxUint32, 1<<32 - 1},
		{3<<32 + 9, 9, 3<<32 + 9},
	} {
		if got := Extend(c.near, c.low); got != c.want {
			t.Errorf("Extend(%#x, %#x) is %#x, want %#x", c.near, c.low, got, c.want)
		}
	}
}

// In any order of releases and grants no slot is sent to while it is in use, limits of bytes hold, and nothing gets stuck.
// parity: S17 B34
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots, bytes := rapid.IntRange(1, 9).Draw(t, "slots"), rapid.IntRange(10, 60).Draw(t, "bytes")
		total := rapid.Uint64Range(0, 60).Draw(t, "messages")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		s, r := NewSendWindow(slots, int64(bytes)), NewReceiveWindow(slots, int64(bytes))
		type sent struct {
			seq uint64
			n   int
		}
		var wire []sent   // sent and not received
		var held []uint64 // received and not released
		var grants []uint64
		for s.Granted() < total {
			switch rng.IntN(4) {
			case 0:
				n := rng.IntN(11)
				if s.Sent() == total || !s.Fits(n) {
					break
				}
				seq := s.Send(n)
				for _, m := range wire {
					if s.Slot(m.seq) == s.Slot(seq) {
						t.Fatalf("message %d is sent to the slot of %d", seq, m.seq)
					}
				}
				for _, h := range held {
					if r.Slot(h) == s.Slot(seq) {
						t.Fatalf("message %d is sent to the slot of %d", seq, h)
					}
				}
				wire = append(wire, sent{seq, n})
			case 1:
				if len(wire) > 0 {
					if err := r.Receive(wire[0].seq, wire[0].n); err != nil {
						t.Fatal(err)
					}
					held, wire = append(held, wire[0].seq), wire[1:]
				}
			case 2:
				if len(held) > 0 {
					i := rng.IntN(len(held))
					if err := r.Release(held[i]); err != nil {
						t.Fatal(err)
					}
					grants = append(grants, r.Released())
					held = slices.Delete(held, i, i+1)
				}
			case 3:
				if len(grants) > 0 {
					i := rng.IntN(len(grants)) // overtaken ones stay behind
					if err := s.Grant(Extend(s.Granted(), uint32(grants[i]))); err != nil {
						t.Fatal(err)
					}
					grants = slices.Delete(grants, i, i+1)
				}
			}
		}
		messages, used := s.Outstanding()
		if _, here := r.Outstanding(); s.Sent() != total || !r.Idle() || messages != 0 || used != 0 || here != 0 {
			t.Fatalf("in the end %+v, %+v", s, r)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	s, r := NewSendWindow(4, 40), NewReceiveWindow(4, 40)
	n := testing.AllocsPerRun(100, func() {
		seq := s.Send(10)
		if r.Receive(seq, 10) != nil || r.Release(seq) != nil || s.Grant(r.Released()) != nil {
			t.Fatal("refused")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}
