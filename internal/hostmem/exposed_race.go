//go:build race

package hostmem

// The race detector instruments the built-in copy and append also in functions marked norace, so these functions use loops.

// CopyExposed copies min(len(dst), len(src)) bytes from src to dst like the built-in copy. One of the two is memory that is exposed to
// peers, so its owner and other peers may read and write it at the same time. The race detector does not see the copy, because such
// an access is a race between programs and not one of this program.
//
//go:norace
func CopyExposed(dst, src []byte) {
	for i := range min(len(dst), len(src)) {
		dst[i] = src[i]
	}
}

// AppendExposed appends src, which is memory exposed to peers, to dst like the built-in append. The race detector does not see its
// reads of src, for the reason given at [CopyExposed].
//
//go:norace
func AppendExposed(dst, src []byte) []byte {
	for _, b := range src {
		dst = append(dst, b)
	}
	return dst
}
