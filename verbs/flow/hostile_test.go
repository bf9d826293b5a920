package flow

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest/memdev"
)

// rawPeer is the other end of a connection of this package, on bare verbs: it sends the messages that a test makes.
type rawPeer struct {
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	own  *verbs.MR // receives lie in its first part, then the ring, then messages
	conn *verbs.Conn
	peer hello // of the end under test
}

const (
	rawReceives = 16
	rawReceive  = 4096                     // bytes of one receive
	rawRing     = rawReceives * rawReceive // where the ring begins
	rawRoom     = 4096                     // bytes of the ring
	rawOut      = rawRing + rawRoom        // where messages and payloads begin
	rawPosted   = 1 << 56                  // id of a send; receives have smaller ones
	rawRights   = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead
)

// newRawPeer makes the queue pair and its memory, with room for so much to send.
func newRawPeer(dev *verbs.Device, payload int) (r *rawPeer, err error) {
	r = &rawPeer{dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.pd, err = dev.AllocPD(); err != nil {
		return r, err
	}
	if r.cq, err = dev.CreateCQ(256); err != nil {
		return r, err
	}
	if r.qp, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, MaxSendWR: 64, MaxRecvWR: 64}); err != nil {
		return r, err
	}
	if r.own, err = r.pd.RegMR(make([]byte, rawOut+payload), rawRights); err != nil {
		return r, err
	}
	for i := range rawReceives {
		if err := r.receive(uint64(i)); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r *rawPeer) receive(i uint64) error {
	_, err := r.qp.PostRecv([]verbs.RecvWR{{ID: i, SGL: []verbs.SGE{r.own.SGE(int(i)*rawReceive, rawReceive)}}})
	return err
}

// param is the connection's, with a hello that claims a small ring in own.
func (r *rawPeer) param() verbs.ConnParam {
	h := hello{records: 16, inline: 1024, bytes: rawRoom, ring: r.own.RemoteAt(rawRing)}
	return verbs.ConnParam{PrivateData: h.append(nil)}
}

// connected keeps the connection.
func (r *rawPeer) connected(conn *verbs.Conn) (err error) {
	r.conn = conn
	r.peer, err = parseHello(conn.PrivateData())
	return err
}

// do posts a request and waits until it is done, or the connection is over. It returns the request's status.
func (r *rawPeer) do(ctx context.Context, wr verbs.SendWR) (verbs.WCStatus, error) {
	wr.ID, wr.Flags = rawPosted, verbs.Signaled
	if _, err := r.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		return 0, err
	}
	for {
		var wc [1]verbs.WC
		if _, err := r.cq.Wait(ctx, wc[:]); err != nil {
			return 0, err
		}
		switch {
		case wc[0].ID == rawPosted:
			return wc[0].Status, nil
		case wc[0].Status == verbs.StatusSuccess:
			if err := r.receive(wc[0].ID); err != nil {
				return 0, err
			}
		}
	}
}

// message puts a message into own, and returns where it is.
func (r *rawPeer) message(h header, payload []byte) verbs.SGE {
	b := r.own.Bytes()[rawOut:]
	h.put(b)
	copy(b[headerLen:], payload)
	return r.own.SGE(rawOut, headerLen+len(payload))
}

// close releases everything.
func (r *rawPeer) close() (err error) {
	if r.qp != nil {
		err = r.qp.Close()
	}
	if r.own != nil {
		err = errors.Join(err, r.own.Close())
	}
	if r.cq != nil {
		err = errors.Join(err, r.cq.Close())
	}
	if r.pd != nil {
		err = errors.Join(err, r.pd.Close())
	}
	return err
}

// dialRaw has a raw peer connect to a listener of this package, and returns both ends.
func dialRaw(ctx context.Context, dev *verbs.Device, l *Listener) (*rawPeer, *Conn, error) {
	cfg := l.cfg
	r, err := newRawPeer(dev, cmp.Or(cfg.Bytes, defaultBytes))
	if err != nil {
		return nil, nil, err
	}
	var c *Conn
	var accepting error
	var wg sync.WaitGroup
	wg.Go(func() { c, accepting = l.Accept(ctx) })
	conn, err := verbs.Dial(ctx, r.qp, l.Addr(), r.param())
	wg.Wait()
	if err == nil {
		err = r.connected(conn)
	}
	if err = errors.Join(err, accepting); err != nil {
		return nil, nil, errors.Join(err, r.close())
	}
	return r, c, nil
}

// acceptRaw has this package connect to a raw peer that listens, and returns both ends.
func acceptRaw(ctx context.Context, dev *verbs.Device, l *verbs.Listener, cfg Config) (*rawPeer, *Conn, error) {
	r, err := newRawPeer(dev, cmp.Or(cfg.Bytes, defaultBytes))
	if err != nil {
		return nil, nil, err
	}
	var accepting error
	var wg sync.WaitGroup
	wg.Go(func() {
		req, err := l.Accept(ctx)
		if err != nil {
			accepting = err
			return
		}
		if r.peer, accepting = parseHello(req.PrivateData()); accepting == nil {
			r.conn, accepting = req.Accept(ctx, r.qp, r.param())
		}
	})
	c, err := Dial(ctx, dev, l.Addr(), cfg)
	wg.Wait()
	if err = errors.Join(err, accepting); err != nil {
		return nil, nil, errors.Join(err, r.close())
	}
	return r, c, nil
}

// TestWriteWithImmediateIsRefused has a peer write its whole ring, as it may, with immediate data. The completion's length is
// that of the write, and longer than the receive's buffer: taken for a message it panicked in a goroutine of the package. A
// short write would have it read again the bytes that an earlier message left in the buffer. Both ends of a connection are attacked, and so
// is a message with immediate data, and one that invalidates the key of the ring.
func TestWriteWithImmediateIsRefused(t *testing.T) {
	for name, attack := range map[string]struct {
		text string
		wr   func(r *rawPeer) verbs.SendWR
	}{
		"whole ring": {"recv-rdma-with-imm", func(r *rawPeer) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpWriteImm, SGL: []verbs.SGE{r.own.SGE(rawOut, int(r.peer.bytes))}, Remote: r.peer.ring, Imm: 7}
		}},
		"a header's length": {"recv-rdma-with-imm", func(r *rawPeer) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpWriteImm, SGL: []verbs.SGE{r.own.SGE(rawOut, headerLen)}, Remote: r.peer.ring, Imm: 7}
		}},
		"message with immediate": {"immediate", func(r *rawPeer) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpSendImm, SGL: []verbs.SGE{r.message(header{kind: kindControl}, nil)}, Imm: 7}
		}},
		"message that invalidates": {"", func(r *rawPeer) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpSendInvalidate, SGL: []verbs.SGE{r.message(header{kind: kindControl}, nil)}, InvKey: r.peer.ring.RKey}
		}},
	} {
		for _, active := range []bool{false, true} {
			end := map[bool]string{false: "listening", true: "dialling"}[active]
			t.Run(name+"/"+end, func(t *testing.T) {
				dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
				defer func() { must(t, dev.Close()) }()
				refuses(t, dev, active, attack.wr, attack.text)
			})
			t.Run(name+"/"+end+"/software device", func(t *testing.T) {
				dev, err := iwarp.Open(iwarp.Config{})
				must(t, err)
				defer func() { must(t, dev.Close()) }()
				refuses(t, dev, active, attack.wr, "")
			})
		}
	}
}

// refuses has a peer execute a request, and checks that this ends the connection with ErrPeer. A device refuses
// an invalidation with an error of its own; then text is empty.
func refuses(t *testing.T, dev *verbs.Device, active bool, wr func(*rawPeer) verbs.SendWR, text string) {
	ctx := devicetest.Context(t)
	r, c, err := rawPair(ctx, dev, active)
	must(t, err)
	defer func() { must(t, errors.Join(c.Close(), r.close())) }()
	if active { // the active end has said something, so a receive of the peer's is used up
		_, _ = r.do(ctx, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{r.message(header{kind: kindControl}, nil)}})
	}
	_, _ = r.do(ctx, wr(r)) // its status is the device's
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("the connection goes on")
	}
	if err := c.Err(); text != "" && (!errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), text)) {
		t.Errorf("%v, want %q", err, text)
	}
}

// TestInvalidationIsNoMessage refuses the completion of a message that has invalidated a key, which a device may report though
// flow grants no peer that right.
func TestInvalidationIsNoMessage(t *testing.T) {
	c := &Conn{}
	for want, wc := range map[string]verbs.WC{
		"":             {Op: verbs.WCRecv, Len: headerLen},
		"invalidates":  {Op: verbs.WCRecv, Len: headerLen, HasInv: true, InvKey: 5},
		"in a receive": {Op: verbs.WCRecv, Len: headerLen + 1},
	} {
		if _, err := c.lengthOf(&wc); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", wc, err, want)
		}
	}
}

// rawPair makes a connection to a raw peer; the end under test has dialed if active.
func rawPair(ctx context.Context, dev *verbs.Device, active bool) (*rawPeer, *Conn, error) {
	if active {
		l, err := verbs.Listen(dev, loopback)
		if err != nil {
			return nil, nil, err
		}
		r, c, err := acceptRaw(ctx, dev, l, Config{})
		return r, c, errors.Join(err, l.Close())
	}
	l, err := Listen(dev, loopback, Config{})
	if err != nil {
		return nil, nil, err
	}
	r, c, err := dialRaw(ctx, dev, l)
	return r, c, errors.Join(err, l.Close())
}

// TestAcceptQueueIsShared has one host ask for connections that the program does not accept, more than there is room for: another
// host still finds a place among those that are answered, and among those that wait.
func TestAcceptQueueIsShared(t *testing.T) {
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	defer func() { must(t, dev.Close()) }()
	ctx := devicetest.Context(t)
	l, err := Listen(dev, loopback, Config{Bytes: 4096})
	must(t, err)
	host := l.book.Account(hostquota.HostOf(loopback.Addr()))
	dialing, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 3 * mostAnswered {
		wg.Go(func() {
			c, err := Dial(dialing, dev, l.Addr(), Config{Bytes: 4096})
			if err == nil {
				<-dialing.Done()
				_ = c.Close() // the listener has ended it
			}
		})
	}
	for host.Used(hostquota.Queued)+host.Used(hostquota.Handshakes) < 2*mostAnswered && ctx.Err() == nil {
		runtime.Gosched()
	}
	if n := host.Used(hostquota.Handshakes); n > mostAnswered*9/16 {
		t.Errorf("one host has %d of %d places", n, mostAnswered)
	}
	other := l.book.Account(hostquota.ProcessHost(0, 1))
	if err := errors.Join(other.Take(hostquota.Handshakes, 1), other.Take(hostquota.Queued, 1)); err != nil {
		t.Errorf("another host: %v", err)
	}
	other.Give(hostquota.Handshakes, 1)
	other.Give(hostquota.Queued, 1)
	c, err := l.Accept(ctx)
	must(t, err)
	must(t, l.Close())
	cancel()
	wg.Wait()
	must(t, c.Close())
	if n := host.Used(hostquota.Queued) + host.Used(hostquota.Handshakes); n != 0 {
		t.Errorf("%d places are in use in the end", n)
	}
}

// TestRequestBehindCloseIsRejected has the device report a request when Close has rejected those that waited, at a moment
// when the request's host has its share of places: the request is rejected and not forgotten.
func TestRequestBehindCloseIsRejected(t *testing.T) {
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	defer func() { must(t, dev.Close()) }()
	ctx := devicetest.Context(t)
	l, err := Listen(dev, loopback, Config{Bytes: 4096})
	must(t, err)
	must(t, l.Close())
	host := l.book.Account(hostquota.HostOf(loopback.Addr()))
	for host.Take(hostquota.Handshakes, 1) == nil {
	}
	vl, err := verbs.Listen(dev, loopback)
	must(t, err)
	dialed := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, dev, vl.Addr(), Config{Bytes: 4096})
		dialed <- err
	}()
	req, err := vl.Accept(ctx)
	must(t, err)
	l.take(req)
	if _, ok := errors.AsType[*verbs.RejectedError](<-dialed); !ok {
		t.Error("the request is not rejected")
	}
	l.wg.Wait()
	must(t, vl.Close())
}
