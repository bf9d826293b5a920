//go:build race

package sm

// What peers do to exposed memory is no race of the program's to report, whether the kernel does it or this package. The
// race detector knows about append and copy even in a function that it is kept out of, hence the loop.

// copyExposed copies between memory that is exposed, which its owner and other peers may read and write meanwhile, and
// memory that is not.
//
//go:norace
func copyExposed(to, from []byte) {
	for i, b := range from {
		to[i] = b
	}
}
