package hostmem

import (
	"strings"
	"unsafe"
)

// Uncleared returns n bytes of the Go heap with any content, and without spare capacity. The caller writes all bytes that it reads or shows to others. The
// built-in make clears the memory first, which takes about as long as a copy of the same size.
func Uncleared(n int) []byte {
	if n <= 0 {
		return nil
	}
	var b strings.Builder
	b.Grow(n)      // does not clear, because a Builder never shows bytes that were not written
	b.WriteByte(0) // because unsafe.StringData is not specified for an empty string
	return unsafe.Slice(unsafe.StringData(b.String()), n)
}
