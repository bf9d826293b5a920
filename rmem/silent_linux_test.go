package rmem

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { roles["frozen"] = beFrozen }

// beFrozen is a client over verbs that has memory without a lease, and stands still from then on.
func beFrozen(addr string) {
	dev, err := openEither()
	check(err)
	to, err := netip.ParseAddrPort(addr)
	check(err)
	c, err := DialVerbs(context.Background(), dev, to)
	check(err)
	r, err := c.Alloc(context.Background(), 1000)
	check(err)
	fmt.Println(r.Handle())
	check(unix.Kill(os.Getpid(), unix.SIGSTOP))
	select {}
}

// TestVerbsSilentClient: a client's host that stands still, as if it had vanished, ends no connection: its kernel even
// acknowledges what comes. The server asks, and takes back what was lent.
func TestVerbsSilentClient(t *testing.T) {
	t.Parallel()
	if name := os.Getenv(deviceEnv); name != "" {
		t.Skipf("%s is of the kernel, which answers for a process that stands still", name)
	}
	s, dev := serveVerbs(t, Config{Silence: 5 * time.Second})
	p := spawn(t, "frozen", s.Addr().String())
	h, err := ParseHandle(p.line(t))
	must(t, err)
	eventually(t, "the silent client is gone", func() bool { return s.Stats().Clients == 0 })
	if st := s.Stats(); st.Used != 0 {
		t.Errorf("%+v", st)
	}
	_, err = dialVerbs(t, s, dev).Open(testContext(t), h)
	wantError(t, "the silent client's", err, ErrFreed)
}
