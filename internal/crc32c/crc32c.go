package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

const (
	// blockLen is how many bytes one round folds.
	blockLen = 256
	// foldFrom is the length in bytes from which folding pays.
	foldFrom = 2048
	// foldMost is how many are folded at once: assembly cannot be interrupted by the scheduler, and a garbage
	// collection waits for it, so a stretch is a matter of microseconds.
	foldMost = 256 << 10
)

// Update adds b to a running CRC, which starts at 0.
func Update(crc uint32, b []byte) uint32 {
	for canFold && len(b) >= foldFrom {
		n := min(len(b)&^(blockLen-1), foldMost)
		crc = ^fold(b[:n], ^crc) // the register of a running CRC is its complement
		b = b[n:]
	}
	return crc32.Update(crc, table, b)
}

// Checksum returns the CRC of b.
func Checksum(b []byte) uint32 { return Update(0, b) }
