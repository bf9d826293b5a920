//go:build !unix

package compare

// readUsage knows nothing on systems without getrusage.
func readUsage() usage { return usage{} }
