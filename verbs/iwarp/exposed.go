//go:build !race

package iwarp

// appendExposed appends a copy of exposed memory, which its owner and peers may
// change meanwhile.
func appendExposed(dst, exposed []byte) []byte { return append(dst, exposed...) }

// copyExposed copies src to exposed memory, which its owner and other peers may
// read and write meanwhile.
func copyExposed(exposed, src []byte) { copy(exposed, src) }
