package sm

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// TestPeerFillsItsDoorbell has a client fill the count of its own doorbell and then let the eventfd block, which it can do
// at any time because the flag is the open file's. A server that writes to the doorbell waits for ever, and a process that
// does so in a raw system call stops at its next garbage collection. The server is another process, so that this one
// does not stop.
func TestPeerFillsItsDoorbell(t *testing.T) {
	prefix := privatePrefix("b")
	s := start(t, "server", prefixEnv+"="+prefix, "GOGC=1")
	addr := s.expect("ready ")
	good := open(t, Config{Prefix: prefix})
	calls(t, good, addr)
	_, who, err := parseTarget(addr, hostID)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c := mapRawAt(t, &good.cfg, who).claim()
		c.announce()
		c.request(1, []byte("good"))
		c.answer()
		if err := addTokens(c.recvEvent, math.MaxUint64-1); err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(c.recvEvent, false); err != nil {
			t.Fatal(err)
		}
		for tag := range uint32(8) {
			c.request(2+tag, nil)
		}
		calls(t, good, addr)
	}
	s.tell("") // it closes
	eventually(t, "the server closes", func() bool {
		return na.KindOf(newCaller(good, lookup(t, good, addr)).try(t)) == na.Unreachable
	})
}

// try makes a call and returns its error.
func (c *caller) try(t testing.TB) error {
	t.Helper()
	_, err := c.call(t, nil)
	return err
}
