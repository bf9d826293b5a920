package recording

// Pattern returns n bytes of the formula with seed, from offset on. Byte i of it is
//
//	seed + 31 i + 17 ⌊i/256⌋ + 5 ⌊i/65536⌋   modulo 256
//
// as in the C programs of test/interop. n must not be negative.
func Pattern(seed uint32, offset uint64, n int) []byte {
	b := make([]byte, n)
	fillPattern(b, seed, offset)
	return b
}

func fillPattern(b []byte, seed uint32, offset uint64) {
	for i := range b {
		b[i] = patternByte(seed, offset+uint64(i))
	}
}

func patternByte(seed uint32, i uint64) byte {
	return byte(uint64(seed) + i*31 + i>>8*17 + i>>16*5)
}
