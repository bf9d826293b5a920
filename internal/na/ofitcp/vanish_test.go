package ofitcp

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/na"
)

// network is a host of its own beside this one: a network namespace at the other end of a virtual cable.
type network struct {
	t    *testing.T
	name string // of the namespace
	here string // addresses of this end,
	far  string // and of the other
}

// ip runs the ip program.
func (n *network) ip(args string) error {
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, out)
	}
	return nil
}

// newNetwork makes one, or skips the test where that is not allowed.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network namespace can be made by root only")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("a network namespace needs the program ip (Debian: iproute2)")
	}
	id := os.Getpid() % 10_000
	n := &network{t: t, name: fmt.Sprintf("cinnabar%d", id),
		here: fmt.Sprintf("198.18.%d.1", id%250), far: fmt.Sprintf("198.18.%d.2", id%250)} // RFC 2544: for tests between networks
	if err := n.ip("netns add " + n.name); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	t.Cleanup(func() {
		_ = n.ip(fmt.Sprintf("link del cin%d", id)) // there may be none
		_ = n.ip("netns del " + n.name)
	})
	for _, args := range []string{
		fmt.Sprintf("link add cin%d type veth peer name far netns %s", id, n.name),
		fmt.Sprintf("addr add %s/30 dev cin%d", n.here, id),
		fmt.Sprintf("link set cin%d up", id),
		fmt.Sprintf("-n %s addr add %s/30 dev far", n.name, n.far),
		fmt.Sprintf("-n %s link set far up", n.name),
	} {
		if err := n.ip(args); err != nil {
			t.Skipf("no virtual cable can be made here: %v", err)
		}
	}
	return n
}

// cut has everything between the two hosts vanish, which neither is told of.
func (n *network) cut() {
	n.t.Helper()
	if err := n.ip("-n " + n.name + " link set far down"); err != nil {
		n.t.Fatal(err)
	}
}

// TestVanishedHost: when the peer's host has gone without a word, what waits for it fails in bounded time: by keep-alive
// where nothing is sent, and by bytes that nobody acknowledges where something is.
// parity: D07
func TestVanishedHost(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	n := newNetwork(t)
	addr, handle := startIn(t, n)
	open := func(cfg Config) (*Endpoint, na.Addr) {
		cfg.Address = "ofi+tcp://" + n.here + ":0"
		e := openEndpoint(t, cfg)
		to, err := e.Lookup(addr)
		if err != nil {
			t.Fatal(err)
		}
		newClient(e, to, 0).must(t, []byte("alive"))
		return e, to
	}
	silent, toSilent := open(Config{KeepAlive: time.Second, SendTimeout: -1})
	sending, toSending := open(Config{KeepAlive: -1, SendTimeout: time.Second})
	r, err := sending.ParseHandle(handle)
	if err != nil {
		t.Fatal(err)
	}
	n.cut()
	begin := time.Now()
	recv, put := newCall(), newCall()
	silent.RecvExpected(&recv.op, toSilent, 1, nil)
	sending.Put(&put.op, toSending, []na.Fragment{{Remote: r, Local: make([]byte, 64<<20)}})
	for what, op := range map[string]*call{"keep-alive": recv, "send time-out": put} {
		wantKind(t, op.park(t), na.Unreachable)
		if d := time.Since(begin); d > patience/2 {
			t.Errorf("%s: only after %v", what, d)
		}
		t.Logf("%s: %v", what, op.op.Err)
	}
}
