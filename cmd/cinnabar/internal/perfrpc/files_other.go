//go:build !unix

package perfrpc

// openFiles reports that this system has no limit of open files.
func openFiles() (limit int, known bool) { return 0, false }
