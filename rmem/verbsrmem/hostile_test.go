package verbsrmem

import (
	"bytes"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/hostquota"
	"cinnabar/rmem"
	"cinnabar/rmem/internal/link"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// spy is a connection that keeps the address and the key of the last region that its client has allocated or opened.
type spy struct {
	*transport
	last verbs.RemoteAddr
}

func (s *spy) Remote(addr uint64, key uint32) link.Remote {
	s.last = verbs.RemoteAddr{Addr: addr, RKey: key}
	return s.transport.Remote(addr, key)
}

// dialSpy returns a client and its connection.
func dialSpy(t *testing.T, s *Server, dev *verbs.Device) (*rmem.Client, *spy) {
	t.Helper()
	w, err := connect(devicetest.Context(t), dev, s.Addr())
	must(t, err)
	of := &spy{transport: w}
	c, err := network.NewClient(devicetest.Context(t), of)
	must(t, err)
	closing(t, c)
	return c, of
}

// TestKeyOfAnotherConnectionIsUseless has a client read, write and invalidate a region by the key that another client was given,
// which any process can guess or overhear: all clients' keys were of one protection domain. The owner loses nothing.
func TestKeyOfAnotherConnectionIsUseless(t *testing.T) {
	s, dev := serveVerbs(t, rmem.Config{})
	owner, w := dialSpy(t, s, dev)
	r := alloc(t, owner, 100)
	if _, err := r.WriteAt([]byte("data of the owner"), 0); err != nil {
		t.Fatal(err)
	}
	for name, wr := range map[string]verbs.SendWR{
		"read":       {Op: verbs.OpRead, Remote: w.last},
		"write":      {Op: verbs.OpWrite, Remote: w.last},
		"invalidate": {Op: verbs.OpSendInvalidate, InvKey: w.last.RKey},
	} {
		attacks(t, s, dev, name, wr)
	}
	holds(t, owner, r)
}

// attacks has a client of its own execute a request, which ends that client.
func attacks(t *testing.T, s *Server, dev *verbs.Device, name string, wr verbs.SendWR) {
	t.Helper()
	c, w := dialBoth(t, s, dev)
	mr, err := w.c.PD().RegMR(bytes.Repeat([]byte("x"), 24), verbs.LocalWrite)
	must(t, err)
	wr.SGL, wr.ID, wr.Flags = []verbs.SGE{mr.SGE(0, 24)}, 1<<60, verbs.Signaled
	_, err = w.c.QP().PostSend([]verbs.SendWR{wr})
	must(t, err)
	select {
	case <-c.Done():
	case <-devicetest.Context(t).Done():
		t.Fatalf("%s: the attacker goes on", name)
	}
	if got := mr.Bytes(); !bytes.Equal(got, bytes.Repeat([]byte("x"), 24)) {
		t.Errorf("%s: the attacker has %q", name, got)
	}
	must(t, mr.Close())
}

// holds checks that a client lives, and its region is as it was.
func holds(t *testing.T, c *rmem.Client, r *rmem.Region) {
	t.Helper()
	got := make([]byte, 17)
	if _, err := r.ReadAt(got, 0); err != nil || string(got) != "data of the owner" {
		t.Errorf("the owner reads %q, %v", got, err)
	}
	select {
	case <-c.Done():
		t.Error("the owner has lost its connection")
	default:
	}
}

// TestHolderOfHandleCannotRevoke has a process that may read and write a region invalidate the key by which it does: the owner
// keeps its own.
func TestHolderOfHandleCannotRevoke(t *testing.T) {
	s, dev := serveVerbs(t, rmem.Config{})
	owner, mine := dialSpy(t, s, dev)
	holder, w := dialSpy(t, s, dev)
	r := alloc(t, owner, 100)
	if _, err := r.WriteAt([]byte("data of the owner"), 0); err != nil {
		t.Fatal(err)
	}
	opened, err := holder.Open(devicetest.Context(t), r.Handle())
	must(t, err)
	if w.last == mine.last {
		t.Error("both have one key")
	}
	holds(t, holder, opened)
	_, err = w.c.QP().PostSend([]verbs.SendWR{{ID: 1 << 60, Op: verbs.OpSendInvalidate, Flags: verbs.Signaled, InvKey: w.last.RKey}})
	must(t, err)
	<-holder.Done()
	holds(t, owner, r)
}

// TestOpenLimit bounds how many regions of others one connection has open, each of which is a registration.
func TestOpenLimit(t *testing.T) {
	dev := devicetest.MustOpen(t)
	pd, err := dev.AllocPD()
	must(t, err)
	closing(t, pd)
	book := hostquota.NewBook(hostquota.Limits{hostquota.Regions: 1 << 10})
	account := book.Account(hostquota.ProcessHost(0, 1))
	owner, other := newOpener(pd, account), newOpener(pd, account)
	mem := &lentMemory{buf: make([]byte, 100)}
	_, own, err := mem.Locate(owner)
	must(t, err)
	setOthers(other, mostOpen)
	if _, _, err := mem.Locate(other); !errors.Is(err, link.ErrTooManyOpen) {
		t.Error(err)
	}
	setOthers(other, 0)
	_, key, err := mem.Locate(other)
	must(t, err)
	_, again, err := mem.Locate(other) // the same registration
	must(t, err)
	if n := book.Used(hostquota.Regions); n != 1 || key == 0 || key == own || key != again {
		t.Errorf("%d registrations are counted, keys %#x, %#x and %#x", n, own, key, again)
	}
	must(t, errors.Join(other.close(), mem.Close()))
	if _, _, err := mem.Locate(owner); !errors.Is(err, link.ErrEnded) {
		t.Error(err)
	}
	if n := book.Used(hostquota.Regions); n != 0 {
		t.Errorf("%d registrations are counted in the end", n)
	}
}

// setOthers sets the number of regions of other clients that a connection has open.
func setOthers(o *opener, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.others = n
}

// TestConnectionEndsBehindItsKeys has the server revoke a client's regions while the client leaves: the connection's protection
// domain is closed after the last registration in it, so the device can be closed. A registration that Revoke was still ending
// kept the domain open for ever.
func TestConnectionEndsBehindItsKeys(t *testing.T) {
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	s, err := Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"), rmem.Config{})
	must(t, err)
	for range 30 {
		c, err := Dial(devicetest.Context(t), dev, s.Addr())
		must(t, err)
		var regions []*rmem.Region
		for range 10 {
			r, err := c.AllocLease(devicetest.Context(t), 100, time.Hour)
			must(t, err)
			regions = append(regions, r)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, r := range regions {
				s.Revoke(r.ID())
			}
		})
		must(t, c.Close())
		wg.Wait()
	}
	must(t, errors.Join(s.Close(), dev.Close()))
}
