package cinnabar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofitcp"
)

// halfWay is a relay between a client and a server. Once it has passed on a given count of the server's bytes it says
// so, and may hold the rest back.
type halfWay struct {
	listener net.Listener
	server   string
	count    int64         // after how many bytes
	reached  chan struct{} // closed then
	goOn     chan struct{} // the rest waits for its closing

	once sync.Once
	wg   sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	conns []net.Conn
	// +checklocks:mu
	closed bool
}

func newHalfWay(t *testing.T, server string, count int64) *halfWay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &halfWay{listener: l, server: strings.TrimPrefix(server, "ofi+tcp://"), count: count,
		reached: make(chan struct{}), goOn: make(chan struct{})}
	h.wg.Go(h.accept)
	t.Cleanup(h.close)
	return h
}

func (h *halfWay) close() {
	_ = h.listener.Close()
	h.mu.Lock()
	h.closed = true
	closeAll(h.conns)
	h.mu.Unlock()
	h.wg.Wait()
}

// keep has conns closed with the relay, if not before.
func (h *halfWay) keep(conns ...net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, conns...)
	if h.closed {
		closeAll(conns)
	}
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

func (h *halfWay) accept() {
	for {
		client, err := h.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", h.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		both := []net.Conn{client, server}
		h.keep(both...)
		h.wg.Go(func() {
			defer closeAll(both)
			_, _ = io.Copy(server, client)
		})
		h.wg.Go(func() {
			defer closeAll(both)
			if _, err := io.CopyN(client, server, h.count); err == nil {
				h.once.Do(func() { close(h.reached) })
				<-h.goOn
				_, _ = io.Copy(client, server)
			}
		})
	}
}

func (h *halfWay) endpoint(t *testing.T, e *Engine) *Endpoint {
	t.Helper()
	ep, err := e.Lookup("ofi+tcp://" + h.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// A large pull is cancelled when half of it has arrived, while the rest is held back and while it flows. It ends soon
// and once, and what arrives later does not go into the memory, which is another's by then.
// parity: H86
func TestCancelHalfWay(t *testing.T) {
	size := int64(256 << 20)
	switch {
	case os.Getenv("CINNABAR_LARGE") != "":
		size = 1 << 30
	case brief():
		size = 64 << 20
	}
	for _, c := range []struct {
		name string
		held bool
	}{{"rest held back", true}, {"rest flows", false}} {
		t.Run(c.name, func(t *testing.T) {
			p := newBulkPair(t)
			r := p.remote(t, alloc(t, p.there, ReadOnly, size))
			local := alloc(t, p.here, WriteOnly, size)
			relay := newHalfWay(t, p.there.Addr(), size/2)
			if !c.held {
				close(relay.goOn)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			op := r.h.On(relay.endpoint(t, p.here)).StartPull(ctx, local)
			select {
			case <-relay.reached:
			case <-op.Done():
				n, err := op.Wait()
				t.Fatalf("over before it was cancelled: %d, %v", n, err)
			}
			cancelled := time.Now()
			cancel()
			n, err := op.Wait()
			wantCode(t, err, codes.Canceled, "pull")
			if !errors.Is(err, context.Canceled) || n != 0 {
				t.Errorf("%d bytes, %v", n, err)
			}
			if d := time.Since(cancelled); d > testLimit/2 {
				t.Errorf("took %v to end", d)
			}
			poison := bytes.Repeat([]byte{0xEE}, 1<<20)
			for part := range partsOf(local.Bytes(), len(poison)) {
				copy(part, poison)
			}
			if c.held {
				close(relay.goOn)
			}
			// Behind what is left of the cancelled one.
			if _, err := r.h.On(relay.endpoint(t, p.here)).ReadAt(t.Context(), make([]byte, 100), 5); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			for part := range partsOf(local.Bytes(), len(poison)) {
				if !bytes.Equal(part, poison[:len(part)]) {
					t.Fatal("the memory was written after the end")
				}
			}
		})
	}
}

// partsOf iterates over b in parts of n bytes.
func partsOf(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			part := b[:min(n, len(b))]
			if !yield(part) {
				return
			}
			b = b[len(part):]
		}
	}
}

// An owner takes its memory back while a peer is in the middle of a pull and does not read on: Close returns, nothing
// reads the memory after it, and the peer is told.
func TestCloseUnderStalledPull(t *testing.T) {
	const size = 64 << 20
	p := newBulkPair(t)
	b, err := p.there.Alloc(ReadOnly, size)
	if err != nil {
		t.Fatal(err)
	}
	r := p.remote(t, b)
	relay := newHalfWay(t, p.there.Addr(), size/2)
	op := r.h.On(relay.endpoint(t, p.here)).StartPull(t.Context(), alloc(t, p.here, WriteOnly, size))
	<-relay.reached
	closeBulk(t, b) // unmaps it: reading on would end the program
	close(relay.goOn)
	if n, err := op.Wait(); err == nil {
		t.Errorf("pulled %d bytes of memory that is gone", n)
	}
}

// reluctant is a network that takes its time to let go of memory.
type reluctant struct {
	na.Endpoint
	asked chan struct{} // has a token for each Cancel
	letGo chan struct{} // closed when the network lets go
}

func (r *reluctant) Cancel(op *na.Op) {
	r.asked <- struct{}{}
	go func() {
		<-r.letGo
		r.Endpoint.Cancel(op)
	}()
}

// However long the network takes, a cancelled transfer does not return before it has let go of the memory.
// parity: H86 D48
func TestCancelWaitsForNetwork(t *testing.T) {
	slow := &reluctant{asked: make(chan struct{}, 10), letGo: make(chan struct{})}
	e, err := newEngine(nil, func(c *Config, h na.Handler) (na.Endpoint, error) {
		ep, err := ofitcp.Open(context.Background(), ofitcp.Config{Address: "ofi+tcp://127.0.0.1", Listen: true, Handler: h})
		slow.Endpoint = ep
		return slow, err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	there := bulkEngine(t, nil)
	r := travel(t, expose(t, there, ReadWrite, make([]byte, 100)).Handle()).On(silentPeer(t, e))
	local := alloc(t, e, ReadWrite, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ends := make(chan error, 3)
	go func() { _, err := r.Pull(ctx, local); ends <- err }()
	go func() { _, err := r.StartPush(ctx, local).Wait(); ends <- err }()
	go func() { _, err := r.ReadAt(ctx, make([]byte, 10), 0); ends <- err }()
	cancel()
	for range cap(ends) {
		<-slow.asked
	}
	timer := time.NewTimer(1500 * time.Millisecond) // longer than anything in the engine is patient with a cancel
	defer timer.Stop()
	select {
	case err := <-ends:
		t.Errorf("returned while the network has the memory: %v", err)
	case <-timer.C:
	}
	close(slow.letGo)
	for range cap(ends) {
		wantCode(t, <-ends, codes.Canceled)
	}
}
