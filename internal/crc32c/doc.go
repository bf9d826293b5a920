// Package crc32c computes CRC-32C (Castagnoli), the checksum of iSCSI that MPA
// and the file transfer use, faster than hash/crc32 where the processor can.
//
// hash/crc32 uses the processor's CRC instruction, which processes 8 bytes per cycle
// at most, also if the memory is faster. Processors with 512-bit carry-less
// multiplication (VPCLMULQDQ; AMD since Zen 4, Intel since Ice Lake) fold a long
// input into 256 bytes with the same checksum several times as fast.
// On other processors, and for short inputs, this package calls hash/crc32.
//
//	crc := crc32c.Update(0, header)
//	crc = crc32c.Update(crc, payload)
//
// The results are those of hash/crc32 with its Castagnoli table, always. All
// functions are safe for concurrent use.
//
// The method is that of V. Gopal et al., Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction (Intel, 2009), with blocks of 2048 bits.
package crc32c
