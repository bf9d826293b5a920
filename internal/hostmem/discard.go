package hostmem

import "os"

// Discard gives the pages that lie wholly in b back to the system, and reports whether the system has taken them. Their bytes are 0
// afterwards, and each page takes memory again when it is written. b must be private memory of this process, of the Go heap or of [Map],
// and no page of b may be locked. On systems other than Linux, Discard does nothing and returns false.
func Discard(b []byte) bool {
	page := uint64(os.Getpagesize())
	start := Addr(b)
	low := (start+page-1)/page*page - start
	high := (start+uint64(len(b)))/page*page - start
	if len(b) == 0 || low >= high || high > uint64(len(b)) {
		return false
	}
	return discardPages(b[low:high])
}
