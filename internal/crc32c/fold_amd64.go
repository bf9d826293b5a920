package crc32c

import "golang.org/x/sys/cpu"

// canFold says that the processor and the system have what fold uses.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// fold returns what p makes of a CRC register of state. p is one or more blocks of 256 bytes long.
//
//go:noescape
func fold(p []byte, state uint32) uint32
