//go:build !linux

package hostmem

func discardPages([]byte) bool { return false }
