package ofitcp

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/na"
)

// TestCloseMemory: a closed key is refused, and Close is idempotent.
func TestCloseMemory(t *testing.T) {
	e := openEndpoint(t, Config{})
	m, h := expose(t, e, e, make([]byte, 10), na.ReadWrite)
	m.Close()
	m.Close()
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	c.write(appendReadReq(nil, []iov{{len: 1, key: h.(*remote).key}}))
	if got := c.closed(); len(got) > 0 {
		t.Errorf("answered % x", got)
	}
}

// TestKeys: keys are random and of all 64 bits.
func TestKeys(t *testing.T) {
	e := openEndpoint(t, Config{})
	seen, ones := map[uint64]bool{}, uint64(0)
	for range 200 {
		m, h := expose(t, e, e, make([]byte, 1), na.ReadOnly)
		k := h.(*remote).key
		if seen[k] || k == 0 {
			t.Fatalf("key %#x again", k)
		}
		seen[k] = true
		ones |= k
		m.Close()
	}
	if ones != ^uint64(0) {
		t.Errorf("bits of all keys: %#x", ones)
	}
}

func TestRegisterArguments(t *testing.T) {
	e := openEndpoint(t, Config{})
	for _, tc := range []struct {
		n      int
		access na.Access
	}{{0, na.ReadOnly}, {1, 0}, {1, 4}} {
		if _, err := e.Register(make([]byte, tc.n), tc.access); na.KindOf(err) != na.Invalid {
			t.Errorf("%d bytes, access %d: %v", tc.n, tc.access, err)
		}
	}
}

// TestCloseDuringWrite: Close waits for a write that is under way, and the memory is the owner's when it returns.
func TestCloseDuringWrite(t *testing.T) {
	e := openEndpoint(t, Config{})
	buf := make([]byte, 1<<20)
	m, h := expose(t, e, e, buf, na.WriteOnly)
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	payload := bytes.Repeat([]byte{7}, len(buf))
	c.write(appendWrite(nil, []iov{{len: uint64(len(buf)), key: h.(*remote).key}}, uint64(len(buf))))
	c.write(payload[:1000])
	waitUse(t, m.(*memory))
	done := make(chan struct{})
	go func() {
		m.Close()
		close(done)
	}()
	early := time.NewTimer(20 * time.Millisecond)
	select {
	case <-done:
		t.Fatal("Close did not wait for the write")
	case <-early.C:
	}
	c.write(payload[1000:])
	<-done
	if !bytes.Equal(buf, payload) {
		t.Error("the write is not complete")
	}
	if m, _ := c.message(); !m.ack {
		t.Errorf("%+v, want an acknowledgement", m)
	}
}

// waitUse waits until a peer's access to m is under way.
func waitUse(t *testing.T, m *memory) {
	t.Helper()
	for end := time.Now().Add(patience); m.users.Users() == 0; {
		if time.Now().After(end) {
			t.Fatal("no access begins")
		}
	}
}

// TestCloseStalled: a peer that stalls in the middle of an access does not keep Close, and is cut off.
func TestCloseStalled(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	t.Run("write", func(t *testing.T) {
		t.Parallel()
		e := openEndpoint(t, Config{})
		m, h := expose(t, e, e, make([]byte, 1<<20), na.WriteOnly)
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		c.write(appendWrite(nil, []iov{{len: 1 << 20, key: h.(*remote).key}}, 1<<20))
		c.write(make([]byte, 1000))
		waitUse(t, m.(*memory))
		m.Close()
		c.closed()
	})
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		e := openEndpoint(t, Config{})
		m, h := expose(t, e, e, make([]byte, 64<<20), na.ReadOnly)
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		c.write(appendReadReq(nil, []iov{{len: 64 << 20, key: h.(*remote).key}}))
		c.read(1) // it has begun
		m.Close()
		if e.Stats().Open != 0 {
			t.Error("the connection is still open")
		}
	})
}

// TestBackpressure: a peer that asks for much and reads nothing costs bounded memory, and holds up nobody else.
func TestBackpressure(t *testing.T) {
	e := openEcho(t, Config{})
	_, h := expose(t, e, e, make([]byte, 4096), na.ReadOnly)
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	req := bytes.Repeat(appendReadReq(nil, []iov{{len: 4096, key: h.(*remote).key}}), 1000)
	if err := c.SetWriteBuffer(16 << 10); err != nil { // fewer requests that have left and are not read
		t.Fatal(err)
	}
	to := r.lookup(e).(*peer)
	until(t, "connection", func() bool { return to.conn.Load() != nil })
	own := to.conn.Load()
	sent := 0
	until(t, "the end of the reading", func() bool {
		paused := own.paused.Load()
		_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := c.Write(req[sent%len(req):])
		sent += n
		return err != nil && n == 0 && paused && own.paused.Load()
	})
	owes := own.owes.Load()
	if owes < maxReplies/2 || owes > maxReplies+1000 {
		t.Errorf("%d answers are owed; reading stops at %d", owes, maxReplies)
	}
	other := newRaw(t)
	oc, _ := other.dial(e, 1)
	other.ping(oc, 1)
	_ = c.SetDeadline(time.Now().Add(4 * patience))    // it is much, for the race detector on a busy machine
	whole := sent / len(appendReadReq(nil, []iov{{}})) // now the peer reads
	for range whole {
		if m, _ := c.message(); m.op != opReadRsp {
			t.Fatalf("%+v", m)
		}
	}
}

// TestSendTimeout: a peer that takes no bytes for the send time-out is given up.
// parity: D07
func TestSendTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	e, r := openEndpoint(t, Config{SendTimeout: 500 * time.Millisecond}), newRaw(t)
	op := newCall()
	e.Put(&op.op, r.lookup(e), []na.Fragment{{Remote: &remote{size: 64 << 20, access: na.WriteOnly}, Local: make([]byte, 64<<20)}})
	r.accept(1)
	err := op.park(t)
	wantKind(t, err, na.Unreachable)
	t.Log(err)
}

// TestSlowReadersDoNotHoldClose: peers that read exposed memory slowly, but without a pause, delay the closing of several
// pieces together for no longer than that of one.
func TestSlowReadersDoNotHoldClose(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	e := openEndpoint(t, Config{})
	const pieces = 3
	var mems []na.Memory
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range pieces {
		m, h := expose(t, e, e, make([]byte, 64<<20), na.ReadOnly)
		mems = append(mems, m)
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		c.write(appendReadReq(nil, []iov{{len: 64 << 20, key: h.(*remote).key}}))
		c.read(baseLen)
		wg.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for b := make([]byte, 64<<10); ; {
				select {
				case <-tick.C:
				case <-stop:
					return
				}
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		})
	}
	begin := time.Now()
	for _, m := range mems {
		m.Revoke()
	}
	for _, m := range mems {
		m.Close()
	}
	if d := time.Since(begin); d > 2*na.DrainTime {
		t.Errorf("closing %d pieces of memory took %v", pieces, d)
	}
	close(stop)
	wg.Wait()
}
