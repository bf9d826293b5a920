//go:build race

package ofitcp

// As with the kernel's accesses (see internal/sockio), what peers do to exposed memory is no race of the program's to
// report. The race detector knows about append and copy even in a function that it is kept out of, hence the loops.

// copyExposed copies src to exposed memory, which its owner and other peers may read and write meanwhile.
//
//go:norace
func copyExposed(exposed, src []byte) {
	for i, b := range src {
		exposed[i] = b
	}
}
