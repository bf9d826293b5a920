//go:build !unix

package main

import "testing"

// lockSharedMemory does nothing where there is no na+sm.
func lockSharedMemory(*testing.T) {}
