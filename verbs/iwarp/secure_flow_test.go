package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestTLSPingPong sends messages to and fro, of sizes around those of records, with goroutines that wait for the completions. Each message
// must wake its receiver although TLS may have taken it from the socket before.
func TestTLSPingPong(t *testing.T) {
	a, b := securePair(t)
	const most, rounds = 100_000, 150
	var wg sync.WaitGroup
	for n, s := range []*side{a, b} {
		out, in := s.region(t, most), s.region(t, most)
		fill(out.Bytes(), 3)
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, 2)) // the same sizes at both ends
			s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{in.SGE(0, most)}})
			sent := 0
			// message waits until a message has come, and returns its length.
			message := func() int {
				for {
					switch wc := s.wait(t); {
					case wc.Status != verbs.StatusSuccess:
						t.Fatalf("completion %+v", wc)
					case wc.ID == 1:
						return int(wc.Len)
					default:
						sent++
					}
				}
			}
			for range rounds {
				sizes := []int{0, 1, 17, 300, 4096, 16<<10 - 30, 16 << 10, 33_000, most}
				size := sizes[rng.IntN(len(sizes))]
				post := verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(0, size)}}
				if n == 0 {
					s.send(t, post)
				}
				if got := message(); got != size || !bytes.Equal(in.Bytes()[:size], out.Bytes()[:size]) {
					t.Errorf("received %d bytes, want %d, or other ones", got, size)
				}
				s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{in.SGE(0, most)}})
				if n == 1 {
					s.send(t, post)
				}
			}
			for ; sent < rounds; sent++ {
				s.want(t, 2, verbs.WCSend, verbs.StatusSuccess)
			}
		})
	}
	wg.Wait()
}

// securePair returns two ends that are connected by TLS.
func securePair(t *testing.T) (active, passive *side) {
	t.Helper()
	cfg := secure(t)
	return newPair(t, cfg, cfg)
}

// TestTLSHeldMessages sends more messages than the receiver may hold. Receives are posted later, one by one, and each must go on with the bytes
// that TLS has taken from the socket before.
func TestTLSHeldMessages(t *testing.T) {
	cfg := secure(t)
	held := cfg
	held.HoldLimit = 1000
	a, b := newPair(t, cfg, held)
	const n, size = 200, 700
	src, dst := a.region(t, n*size), b.region(t, size)
	for i := range n {
		binary.BigEndian.PutUint32(src.Bytes()[i*size:], uint32(i))
		a.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(i*size, size)}})
	}
	eventually(t, "the receiver has stopped reading", func() bool {
		_, _, stalled := iwarp.Held(b.dev)
		return stalled
	})
	for i := range n {
		b.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(0, size)}})
		b.want(t, uint64(i), verbs.WCRecv, verbs.StatusSuccess)
		if got := binary.BigEndian.Uint32(dst.Bytes()); got != uint32(i) {
			t.Fatalf("message %d came in the place of %d", got, i)
		}
	}
	if err := a.conn.Disconnect(testContext(t)); err != nil {
		t.Error(err)
	}
}

// gate is a man in the middle who passes nothing on to the passive side before it is opened.
type gate struct {
	ln   net.Listener
	open chan struct{}
	cut  chan struct{}
	wg   sync.WaitGroup
}

func newGate(t *testing.T, to netip.AddrPort) *gate {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{ln: ln, open: make(chan struct{}), cut: make(chan struct{})}
	g.wg.Go(func() {
		a, err := ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp4", to.String())
		if err != nil {
			_ = a.Close()
			return
		}
		g.wg.Go(func() {
			<-g.cut
			_, _ = a.Close(), b.Close()
		})
		g.wg.Go(func() {
			_, _ = io.Copy(a, b)
			_ = a.(*net.TCPConn).CloseWrite() // it may have been cut
		})
		buf := make([]byte, 64<<10)
		for first := true; ; {
			n, err := a.Read(buf)
			if err != nil {
				_ = b.(*net.TCPConn).CloseWrite() // it may have been cut
				return
			}
			if _, err := b.Write(buf[:n]); err != nil {
				return
			}
			if n == len(buf) && first { // bulk traffic has begun
				first = false
				<-g.open
			}
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		g.release()
		close(g.cut)
		g.wg.Wait()
	})
	return g
}

// release opens the gate, once.
func (g *gate) release() {
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// connectByGate connects two sides by a gate.
func connectByGate(t *testing.T, active, passive *side) *gate {
	t.Helper()
	l, err := verbs.Listen(passive.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g := newGate(t, l.Addr())
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(testContext(t))
		if err == nil {
			passive.conn, err = r.Accept(testContext(t), passive.qp, verbs.ConnParam{})
		}
		done <- err
	}()
	if active.conn, err = verbs.Dial(testContext(t), active.qp, g.ln.Addr().(*net.TCPAddr).AddrPort(), verbs.ConnParam{}); err != nil {
		t.Fatal("dial:", err)
	}
	if err := <-done; err != nil {
		t.Fatal("accept:", err)
	}
	return g
}

// TestTLSDisconnectFullSocket ends a connection behind more bytes than the sockets take. The peer must get all of them, and then the end of the
// stream in order.
func TestTLSDisconnectFullSocket(t *testing.T) {
	cfg := secure(t)
	a, b := newSide(t, cfg, nil), newSide(t, cfg, nil)
	g := connectByGate(t, a, b)
	const size = 16 << 20
	src, dst := a.region(t, size), b.region(t, size)
	fill(src.Bytes(), 5)
	a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()})
	ended := make(chan error, 1)
	go func() { ended <- a.conn.Disconnect(testContext(t)) }()
	g.release()
	a.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
	if err := <-ended; err != nil {
		t.Error("disconnect:", err)
	}
	<-b.conn.Done()
	if err := b.conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		t.Errorf("the end at the peer: %v", err)
	}
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("the bytes differ")
	}
}

// TestTLSEndInTheMiddle ends connections in the middle of a transfer, when TLS has encrypted bytes that the socket has not taken: by the close of the queue
// pair, and by the end of the memory. The peer gets whole records and whole frames, and then the reason or the end of the stream.
func TestTLSEndInTheMiddle(t *testing.T) {
	cfg := secure(t)
	for round := range 6 {
		a, b := newSide(t, cfg, nil), newSide(t, cfg, nil)
		g := connectByGate(t, a, b)
		const size = 16 << 20
		dst := b.region(t, size)
		src, err := a.pd.AllocMR(size, verbs.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		before := a.dev.Stats()["tx_bytes"]
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()})
		eventually(t, "the transfer has begun", func() bool { return a.dev.Stats()["tx_bytes"] > before })
		if round%2 == 0 {
			if err := a.qp.Close(); err != nil {
				t.Fatal(err)
			}
			iwarp.KeepUntilPeerCloses(a.dev) // because a slow machine may need longer than the connection lingers
			a.reopen(t)
		}
		if err := src.Close(); err != nil {
			t.Fatal(err)
		}
		g.release()
		<-a.conn.Done()
		<-b.conn.Done()
		err = b.conn.Err()
		if err == nil || strings.Contains(err.Error(), "no TLS records") || strings.Contains(err.Error(), "terminated by this side") || round%2 == 0 && strings.Contains(err.Error(), "close_notify") {
			t.Errorf("the end at the peer: %v", err)
		}
	}
}

// reopen creates another queue pair in the place of one that is closed, for the end of the test.
func (s *side) reopen(t *testing.T) {
	t.Helper()
	var err error
	if s.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, s.qp.Close)
}

// TestTLSCut cuts a connection. An end of the stream without TLS's own is no end in order, because an attacker can make it.
func TestTLSCut(t *testing.T) {
	cfg := secure(t)
	a, b := newSide(t, cfg, nil), newSide(t, cfg, nil)
	l, err := verbs.Listen(b.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	outer, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer outer.Close()
	var severed atomic.Bool
	wg.Go(func() {
		x, err := outer.Accept()
		if err != nil {
			return
		}
		y, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Error(err)
		} else {
			wg.Go(func() { _, _ = io.Copy(relay{x, &severed}, y) })
			wg.Go(func() { _, _ = io.Copy(relay{y, &severed}, x) })
			<-cut
			severed.Store(true) // because the side that ends first says so to the other one
			_ = y.(*net.TCPConn).CloseWrite()
			_ = x.(*net.TCPConn).CloseWrite()
			<-a.conn.Done()
			<-b.conn.Done()
			_ = y.Close()
		}
		_ = x.Close()
	})
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(testContext(t))
		if err == nil {
			b.conn, err = r.Accept(testContext(t), b.qp, verbs.ConnParam{})
		}
		done <- err
	}()
	if a.conn, err = verbs.Dial(testContext(t), a.qp, outer.Addr().(*net.TCPAddr).AddrPort(), verbs.ConnParam{}); err != nil {
		t.Fatal("dial:", err)
	}
	if err := <-done; err != nil {
		t.Fatal("accept:", err)
	}
	close(cut)
	for _, s := range []*side{a, b} {
		<-s.conn.Done()
		wantWords(t, s.conn.Err(), "connection lost", "close_notify")
	}
}

// relay forwards bytes until it is severed.
type relay struct {
	to      io.Writer
	severed *atomic.Bool
}

func (r relay) Write(b []byte) (int, error) {
	if r.severed.Load() {
		return len(b), nil
	}
	return r.to.Write(b)
}
