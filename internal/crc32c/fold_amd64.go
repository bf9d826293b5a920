package crc32c

import "golang.org/x/sys/cpu"

// canFold reports whether the processor and the system have the instructions of fold.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// fold returns the CRC register after p, for a register of state before p. The length of p is a positive multiple of 256 bytes.
//
//go:noescape
func fold(p []byte, state uint32) uint32
