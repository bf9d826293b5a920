package dordma

import "testing"

// The same over shared memory, on one machine.
// parity: T01
func TestTutorialOverSharedMemory(t *testing.T) {
	s := startServerAt(t, "na+sm://")
	wantClient(t, 0, "", "-grace", "0s", s.addr)
	wantLines(s.Stdout, 1, received)
	s.stop(t, 1)
}
