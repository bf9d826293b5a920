//go:build !unix

package perfrpc

import "testing"

// lockSharedMemory does nothing where there is no na+sm.
func lockSharedMemory(*testing.T) {}
