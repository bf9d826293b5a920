package ofiverbs

import "testing"

// TestFinishDoesNotAllocate has a connection complete few and many sends at a time. The list of few is on the stack.
func TestFinishDoesNotAllocate(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	c := client.connections()[0]
	for n, want := range map[int]float64{fewEndings: 0, fewEndings + 1: 1} {
		done := make([]call, n)
		got := testing.AllocsPerRun(100, func() {
			c.mu.Lock()
			list := c.endings[:0]
			for i := range done {
				done[i].op.Done = &done[i]
				done[i].op.Begin()
				list = append(list, ended{op: &done[i].op, n: int64(i)})
			}
			c.finishUnlock(list)
		})
		for i := range done {
			if done[i].op.N != int64(i) {
				t.Errorf("operation %d of %d is not completed", i, n)
			}
		}
		if got < want || want == 0 && got > 0 {
			t.Errorf("%v allocations for %d sends", got, n)
		}
	}
}
