//go:build !linux

package main

// syncDisks does nothing, because package syscall has no such call on every system.
func syncDisks() {}

// fileSystem is not known.
func fileSystem(string) string { return "unknown" }
