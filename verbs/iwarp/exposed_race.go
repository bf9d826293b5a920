//go:build race

package iwarp

// As with the kernel's accesses (see internal/sockio), what peers do to exposed
// memory is no race of the program's to report. The race detector knows about
// append and copy even in a function that it is kept out of, hence the loops.

// appendExposed appends a copy of exposed memory, which its owner and peers may
// change meanwhile.
//
//go:norace
func appendExposed(dst, exposed []byte) []byte {
	for _, b := range exposed {
		dst = append(dst, b)
	}
	return dst
}

// copyExposed copies src to exposed memory, which its owner and other peers may
// read and write meanwhile.
//
//go:norace
func copyExposed(exposed, src []byte) {
	for i, b := range src {
		exposed[i] = b
	}
}
