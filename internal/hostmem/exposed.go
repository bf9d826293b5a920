//go:build !race

package hostmem

// CopyExposed copies min(len(dst), len(src)) bytes from src to dst like the built-in copy. One of the two is memory that is exposed to
// peers, so its owner and other peers may read and write it at the same time. The race detector does not see the copy, because such
// an access is a race between programs and not one of this program.
func CopyExposed(dst, src []byte) { copy(dst, src) }

// AppendExposed appends src, which is memory exposed to peers, to dst like the built-in append. The race detector does not see its
// reads of src, for the reason given at [CopyExposed].
func AppendExposed(dst, src []byte) []byte { return append(dst, src...) }
