//go:build !linux && !darwin

package hostquota

// physicalMemory returns 0: not known.
func physicalMemory() int64 { return 0 }
