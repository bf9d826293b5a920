//go:build !unix

package main

// processUsage knows nothing on systems without getrusage.
func processUsage() usage { return usage{} }
