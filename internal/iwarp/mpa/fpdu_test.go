package mpa

import (
	"bytes"
	"math"
	"testing"
)

func TestSizes(t *testing.T) {
	for _, tc := range []struct{ ulpdu, pad, fpdu int }{
		{1, 1, 8}, {2, 0, 8}, {3, 3, 12}, {4, 2, 12}, {5, 1, 12}, {6, 0, 12},
		{14, 0, 20},                                              // an empty RDMA Write
		{18, 0, 24},                                              // an empty Send
		{34, 0, 40}, {46, 0, 52}, {1442, 0, 1448}, {158, 0, 164}, // siw's, as captured
		{MaxULPDU, 2, 64776}, {MaxLength, 3, 65544},
	} {
		if got := Pad(tc.ulpdu); got != tc.pad {
			t.Errorf("Pad(%d) = %d, want %d", tc.ulpdu, got, tc.pad)
		}
		if got := FPDULen(tc.ulpdu); got != tc.fpdu {
			t.Errorf("FPDULen(%d) = %d, want %d", tc.ulpdu, got, tc.fpdu)
		}
		if got, want := TrailerLen(tc.ulpdu), tc.pad+4; got != want {
			t.Errorf("TrailerLen(%d) = %d, want %d", tc.ulpdu, got, want)
		}
	}
}

func TestMULPDU(t *testing.T) {
	for _, tc := range []struct{ mss, want int }{
		{math.MinInt, 128}, {-1, 128}, {0, 128}, {128, 128}, {134, 128}, {136, 130}, {137, 130},
		{536, 530}, {1448, 1442}, {1460, 1454}, {1461, 1454}, {1463, 1454}, {1464, 1458}, {8948, 8942},
		{64773, 64766}, {64774, 64766}, {64776, 64768}, {65483, 64768}, {math.MaxInt, 64768},
	} {
		if got := MULPDU(tc.mss); got != tc.want {
			t.Errorf("MULPDU(%d) = %d, want %d", tc.mss, got, tc.want)
		}
	}
}

// TestCheckTrailer damages each octet of an FPDU in turn, for every length of pad.
func TestCheckTrailer(t *testing.T) {
	check := func(fpdu []byte, n int) bool {
		return CheckTrailer(fpdu[HeaderLen+n:], n, Update(0, fpdu[:HeaderLen+n]))
	}
	for n := 20; n < 24; n++ {
		fpdu := appendFPDU(nil, bytes.Repeat([]byte{0xa5}, n), true)
		if len(fpdu) != FPDULen(n) || !check(fpdu, n) {
			t.Fatalf("%d octets: own FPDU %x not accepted", n, fpdu)
		}
		for i := range fpdu {
			bad := bytes.Clone(fpdu)
			bad[i] ^= 0x10
			if check(bad, n) {
				t.Errorf("%d octets: octet %d changed, CRC accepted", n, i)
			}
		}
		trailer := fpdu[HeaderLen+n:]
		for _, tr := range [][]byte{nil, trailer[1:], trailer[:len(trailer)-1], append(bytes.Clone(trailer), 0)} {
			if CheckTrailer(tr, n, Update(0, fpdu[:HeaderLen+n])) {
				t.Errorf("%d octets: trailer of %d octets accepted", n, len(tr))
			}
		}
	}
}

// TestUpdateSplit computes a CRC in pieces, as a device does over header and payload.
func TestUpdateSplit(t *testing.T) {
	b := []byte("the CRC of the parts is the CRC of the whole")
	want := Update(0, b)
	for i := range b {
		if got := Update(Update(0, b[:i]), b[i:]); got != want {
			t.Errorf("split at %d: %08x, want %08x", i, got, want)
		}
	}
	// The check value that catalogues of CRCs list for CRC-32C.
	if got, want := Update(0, []byte("123456789")), uint32(0xe3069283); got != want {
		t.Errorf("check value %08x, want %08x", got, want)
	}
}

func TestTrailerAllocs(t *testing.T) {
	b := make([]byte, 0, 16)
	ok := true
	if n := testing.AllocsPerRun(100, func() {
		b = AppendTrailer(b[:0], 21, 0x12345678, true)
		ok = ok && CheckTrailer(b, 21, 0x12345678)
	}); n != 0 || !ok {
		t.Errorf("%v allocations, accepted %t, want 0, true", n, ok)
	}
}
