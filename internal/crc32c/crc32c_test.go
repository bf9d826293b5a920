package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// random returns n bytes that depend on nothing but n.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b) // never fails
	return b
}

// TestKnown: the check value of the CRC catalogues, and RFC 3720 section B.4's.
func TestKnown(t *testing.T) {
	ascending := make([]byte, 32)
	for i := range ascending {
		ascending[i] = byte(i)
	}
	for _, c := range []struct {
		in   []byte
		want uint32
	}{
		{nil, 0},
		{[]byte("123456789"), 0xe3069283},
		{make([]byte, 32), 0x8a9136aa},
		{ascending, 0x46dd794e},
	} {
		if got := Checksum(c.in); got != c.want {
			t.Errorf("Checksum(%x) = %#08x, want %#08x", c.in, got, c.want)
		}
	}
}

// TestLengths: every length around the sizes at which the method changes, at every
// alignment in a block of 64 bytes, from several running values.
func TestLengths(t *testing.T) {
	buf := random(5*blockLen + 64 + 8192)
	var lengths []int
	for n := range 3 * blockLen {
		lengths = append(lengths, n, foldFrom-blockLen+n)
	}
	lengths = append(lengths, 4095, 4096, 4097, 8192)
	buf = append(buf, random(3*foldMost)...)
	for _, n := range []int{foldMost, 2 * foldMost} { // in one stretch, in two, in three
		lengths = append(lengths, n-1, n, n+1, n+foldFrom-1, n+foldFrom+blockLen+1)
	}
	for _, n := range lengths {
		for _, at := range []int{0, 1, 7, n % 64, 63} {
			for _, crc := range []uint32{0, 1, 0x80000000, 0xffffffff, 0xdeadbeef} {
				b := buf[at : at+n]
				if got, want := Update(crc, b), crc32.Update(crc, table, b); got != want {
					t.Fatalf("Update(%#x, %d bytes at %d) = %#08x, want %#08x", crc, n, at, got, want)
				}
			}
		}
	}
}

// TestFolded: blocks that Update leaves to hash/crc32 are folded rightly too, and the input stays
// what it was.
func TestFolded(t *testing.T) {
	if !canFold {
		t.Skip("the processor has no AVX-512 with VPCLMULQDQ")
	}
	for blocks := 1; blocks <= 40; blocks++ {
		b := random(blocks * blockLen)
		if got, want := ^fold(b, ^uint32(7)), crc32.Update(7, table, b); got != want {
			t.Errorf("%d blocks: %#08x, want %#08x", blocks, got, want)
		}
		if string(b) != string(random(len(b))) {
			t.Errorf("%d blocks: the input was changed", blocks)
		}
	}
}

// TestEveryBit: each bit of a folded input counts.
func TestEveryBit(t *testing.T) {
	b := random(foldFrom + blockLen + 5)
	sum := Checksum(b)
	for i := range 8 * len(b) {
		b[i/8] ^= 1 << (i % 8)
		if Checksum(b) == sum {
			t.Fatalf("bit %d makes no difference", i)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

func TestNoAllocation(t *testing.T) {
	b := random(1 << 16)
	if n := testing.AllocsPerRun(100, func() { Checksum(b) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// FuzzUpdate compares with hash/crc32, the input in one piece and in two.
func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("123456789"), 3)
	f.Add(uint32(1), random(foldFrom), 1)
	f.Add(^uint32(0), random(3*foldFrom+1), foldFrom+1)
	f.Fuzz(func(t *testing.T, crc uint32, b []byte, cut int) {
		want := crc32.Update(crc, table, b)
		if got := Update(crc, b); got != want {
			t.Errorf("Update(%#x, %d bytes) = %#08x, want %#08x", crc, len(b), got, want)
		}
		cut = int(uint(cut) % uint(len(b)+1))
		if got := Update(Update(crc, b[:cut]), b[cut:]); got != want {
			t.Errorf("cut at %d of %d: %#08x, want %#08x", cut, len(b), got, want)
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	for _, size := range []int{256, 1024, 4096, 65536, 1 << 20} {
		buf := random(size)
		for name, update := range map[string]func(uint32, []byte) uint32{
			"crc32c": Update,
			"stdlib": func(crc uint32, p []byte) uint32 { return crc32.Update(crc, table, p) },
		} {
			b.Run(fmt.Sprintf("size=%d/path=%s", size, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					update(0, buf)
				}
			})
		}
	}
}
