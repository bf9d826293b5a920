package regmem

import "cinnabar/internal/hostmem"

// Number is the set of numeric types of the same size on all platforms.
type Number interface{ hostmem.Number }

// Bytes returns the memory of s as bytes, in the byte order of this machine and without a copy, so that a slice of numbers can be
// registered or exposed, alone or as a segment beside segments of other types. The result shares the array of s and keeps it
// alive. It is nil if s is empty.
func Bytes[T Number](s []T) []byte { return hostmem.Bytes(s) }
