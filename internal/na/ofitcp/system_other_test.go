//go:build !unix

package ofitcp

import (
	"testing"
	"time"
)

func cpuTime(t *testing.T) time.Duration {
	t.Skip("this system does not tell the processor time of a process")
	return 0
}

func openFiles(t *testing.T) uint64 {
	t.Skip("this system does not tell how many files a process may have open")
	return 0
}
