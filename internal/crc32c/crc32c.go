package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

const (
	// blockLen is the number of bytes that one round folds.
	blockLen = 256
	// foldFrom is the least length in bytes for which folding is faster.
	foldFrom = 2048
	// foldMost is the largest number of bytes in one call of fold. The scheduler cannot interrupt assembly, and a garbage
	// collection waits for its end, so a call must not take more than some microseconds.
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
