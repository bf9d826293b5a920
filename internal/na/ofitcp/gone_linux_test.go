package ofitcp

import (
	"syscall"
	"testing"
	"time"

	"cinnabar/internal/audit"
)

// tcpRepair is the option TCP_REPAIR of linux/tcp.h.
const tcpRepair = 19

// vanish closes the connection as if its host had lost power: the kernel forgets it without a word to the other end.
func (c *rawConn) vanish() {
	c.t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var failed error
	if err := rc.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1) // otherwise the peer would send again the bytes that were received
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpRepair, 1)
	}); err != nil {
		c.t.Fatal(err)
	}
	if failed != nil {
		c.t.Skipf("a connection cannot be made to vanish here: %v", failed)
	}
	_ = c.Close() // in this mode nothing is sent
}

// silent waits until the connections of a test have been silent for as long as a probe may take.
func silent(t *testing.T) {
	t.Helper()
	timer := time.NewTimer(probeTime + probeTime/4)
	defer timer.Stop()
	<-timer.C
}

// TestGoneConnectionIsReplaced: a peer that was restarted without a word of its end is let in, and replaces its old
// connection.
func TestGoneConnectionIsReplaced(t *testing.T) {
	for name, ids := range map[string][2]processID{"C": {}, "Go": {{1}, {2}}, "the same process": {{3}, {3}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, r := openEcho(t, Config{KeepAlive: -1, SendTimeout: -1}), newRaw(t)
			old, _ := r.dialAs(e, 1, ids[0])
			r.ping(old, 1)
			old.vanish()
			silent(t)
			pid := uint32(2)
			if ids[0] == ids[1] && name != "C" {
				pid = 1
				c, m := r.dialAs(e, pid, ids[1]) // refused, and the old connection is probed
				if m.typ != cmNack {
					t.Fatalf("answer %+v", m)
				}
				c.closed()
			}
			c, m := r.dialAs(e, pid, ids[1])
			if m.typ != cmResponse {
				t.Fatalf("answer %+v", m)
			}
			r.ping(c, 2)
			if n := counted(e, audit.Replaced, causeGone); n != 1 && pid != 1 {
				t.Errorf("%d replacements are counted, want 1", n)
			}
			if n := e.Stats().Open; n != 1 {
				t.Errorf("%d connections are open, want 1", n)
			}
		})
	}
}
