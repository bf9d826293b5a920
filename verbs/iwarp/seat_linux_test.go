package iwarp_test

import (
	"runtime"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestSeatOfEndedConnection has a connection end after a goroutine has decided to wait in its seat. The goroutine returns although the peer does
// not close the connection.
func TestSeatOfEndedConnection(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	park, ok := iwarp.TakeSeat(s.dev)
	if !ok {
		t.Fatal("the seat of a new connection is taken")
	}
	p.write(make([]byte, 64)) // no FPDU
	<-s.conn.Done()
	iwarp.KeepUntilPeerCloses(s.dev)
	stack := make([]byte, 1<<20)
	eventually(t, "the background reader waits for the peer", func() bool {
		return strings.Contains(string(stack[:runtime.Stack(stack, true)]), "readUntilClosed")
	})
	parked := make(chan bool, 1)
	go func() { parked <- park() }()
	select {
	case again := <-parked:
		if again {
			t.Error("Park asks for another call, on a connection that has ended")
		}
	case <-testContext(t).Done():
		t.Error("the goroutine waits until the peer closes the connection")
	}
}
