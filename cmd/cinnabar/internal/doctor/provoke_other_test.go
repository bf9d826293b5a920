//go:build !linux

package doctor

// provoke does nothing: faults of this system are provoked on Linux only.
func provoke() error { return nil }
