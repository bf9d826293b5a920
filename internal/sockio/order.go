//go:build linux && !race

package sockio

// orderWrite does nothing, because this build has no race detector.
func orderWrite() {}

// orderRead does nothing, because this build has no race detector.
func orderRead() {}
