//go:build !linux

package main

// syncDisks does nothing, because package syscall has no such call on every system.
func syncDisks() {}

// fileSystem returns "unknown", because package syscall cannot ask for it on every system.
func fileSystem(string) string { return "unknown" }
