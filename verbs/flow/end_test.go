package flow

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"cinnabar/internal/devicetest"
	"cinnabar/regmem/ring"
	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/rdmacm"
	"cinnabar/verbs/verbstest/memdev"
)

// TestLastRecordBeforeEnd has the last record and the end come in the moment between a reader's look and its wait.
// parity: S17
func TestLastRecordBeforeEnd(t *testing.T) {
	c := &Conn{}
	c.rx.queue, c.rx.fin = make([]Record, 1), true
	c.rx.push(Record{c: c, data: []byte("last")})
	c.rx.readers.End()
	if r, err := c.waitRecord(devicetest.Context(t), "receive"); err != nil || string(r.Bytes()) != "last" {
		t.Errorf("%q, %v", r.Bytes(), err)
	}
	if _, err := c.waitRecord(devicetest.Context(t), "receive"); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestEndBehindComing has CloseWrite called in the moment between a sender's look and its wait: the end must not overtake
// the record.
// parity: S17
func TestEndBehindComing(t *testing.T) {
	a, _ := pair(t, Config{}, Config{})
	a.mu.Lock()
	a.tx.waitingSenders++
	a.mu.Unlock()
	must(t, a.CloseWrite())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tx.finSent {
		t.Error("the end is sent before the record")
	}
	a.tx.waitingSenders--
	if a.answerLocked(); !a.tx.finSent {
		t.Error("the end is not sent behind the record")
	}
}

// TestEndBehindGivenUp tells the peer of the end when the last sender gives up, without another word of the peer's.
// parity: S17
func TestEndBehindGivenUp(t *testing.T) {
	a, p := pair(t, Config{}, Config{Records: 1})
	must(t, a.Send(devicetest.Context(t), []byte("first")))
	ctx, cancel := context.WithCancel(devicetest.Context(t))
	sent := make(chan error)
	go func() { sent <- a.Send(ctx, []byte("second")) }()
	for a.Stats().Waited == 0 {
		runtime.Gosched()
	}
	must(t, a.CloseWrite())
	held := recv(t, p)
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := p.Recv(devicetest.Context(t)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	must(t, held.Release())
}

// TestEndWakesStaging ends who waits for memory to copy a record to, though the device never gives it back.
// parity: S17
func TestEndWakesStaging(t *testing.T) {
	a, _ := pair(t, Config{Bytes: 8192, Linger: -1}, Config{Bytes: 8192})
	staging, err := a.stage("test")
	must(t, err)
	kept, err := staging.Alloc(8192) // as a record that is under way has it
	must(t, err)
	sent := make(chan error)
	go func() { sent <- a.Send(context.Background(), make([]byte, 4096)) }()
	for waiting(staging) == 0 {
		runtime.Gosched()
	}
	must(t, a.Close())
	if err := <-sent; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	must(t, kept.Free())
}

func waiting(r *ring.Ring[*verbs.MR]) int { return r.Stats().Waiting }

// TestFailureEndsGoroutine closes Done when the connection fails, whoever finds out.
func TestFailureEndsGoroutine(t *testing.T) {
	a, _ := pair(t, Config{}, Config{})
	why := errors.New("a reason")
	a.fail(why)
	<-a.Done()
	if err := a.Send(devicetest.Context(t), nil); !errors.Is(err, why) || !errors.Is(a.Err(), why) {
		t.Error(err, a.Err())
	}
}

// TestForeignMemory has the program send memory that is not registered: the connection fails, and the device lets go of all
// memory before SendFrom returns.
func TestForeignMemory(t *testing.T) {
	for _, n := range []uint32{10, 5000} {
		a, _ := pair(t, Config{Linger: -1}, Config{})
		if err := a.SendFrom(devicetest.Context(t), []verbs.SGE{{Addr: 4096, Length: n, LKey: 0xFFFFFFFF}}); err == nil {
			t.Errorf("%d bytes of nobody's memory are sent", n)
		}
		<-a.Done()
	}
}

// TestOneSidedOnly refuses work requests that would take the receives of records.
func TestOneSidedOnly(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWriteImm, verbs.OpSendInvalidate, verbs.OpLocalInv} {
		if err := a.Do(devicetest.Context(t), verbs.SendWR{Op: op}); err == nil {
			t.Errorf("%v is done", op)
		}
	}
	write := verbs.SendWR{Op: verbs.OpWrite}
	if a.Do(devicetest.Context(t)) == nil || a.Do(devicetest.Context(t), write, write, write) == nil || a.Do(devicetest.Context(t), write, verbs.SendWR{Op: verbs.OpSend}) == nil {
		t.Error("none, three, or a send behind a write")
	}
	must(t, a.Send(devicetest.Context(t), []byte("on")))
	must(t, recv(t, p).Release())
}

// TestOneSidedPair confirms writes by a read of a byte behind each, and has the first of two fail.
// parity: S17
func TestOneSidedPair(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	there, err := p.PD().RegMR(make([]byte, 4096), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	must(t, err)
	defer func() { must(t, there.Close()) }()
	here, err := a.PD().RegMR(make([]byte, 4096), 0)
	must(t, err)
	defer func() { must(t, here.Close()) }()
	both := func(to verbs.RemoteAddr) error {
		return a.Do(devicetest.Context(t), verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{here.SGE(0, 4096)}, Remote: to}, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{a.Discard()}, Remote: to})
	}
	for range 300 { // more than the queues hold
		must(t, both(there.Remote()))
	}
	bad := there.Remote()
	bad.RKey++
	if err := both(bad); err == nil {
		t.Error("a write with a key that nobody gave")
	}
	<-a.Done()
}

// TestCloseFrozenPeer closes a connection to a peer that takes nothing any more, with the socket full: it ends all the same.
func TestCloseFrozenPeer(t *testing.T) {
	dev, ctx := devicetest.MustOpen(t), devicetest.Context(t)
	l, err := verbs.Listen(dev, devicetest.MustAddr(t, dev))
	must(t, err)
	ep, err := rdmacm.NewEndpoint(dev, rdmacm.EndpointConfig{})
	must(t, err)
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			h := hello{records: mostRecords, inline: 16 << 10, bytes: 1 << 30}
			_, err = req.Accept(ctx, ep.QP(), verbs.ConnParam{PrivateData: h.append(nil), RNRRetry: 7}) // and no receive
		}
		accepted <- err
	}()
	c, err := Dial(ctx, dev, l.Addr(), Config{Records: 2048, Bytes: 32 << 20, Inline: 16 << 10, Linger: time.Millisecond, Param: verbs.ConnParam{RNRRetry: 7}})
	must(t, errors.Join(err, <-accepted, l.Close()))
	c.closeLimit = time.Millisecond
	for range 2048 { // 32 MiB, more than sockets hold
		must(t, c.Send(ctx, make([]byte, 16<<10)))
	}
	if err := c.Close(); err == nil {
		t.Error("all was sent")
	}
	must(t, ep.Close())
}

// TestMostRecords has as many records under way as a configuration allows.
func TestMostRecords(t *testing.T) {
	cfg := Config{Records: mostRecords, Inline: -1}
	a, p := pair(t, cfg, cfg)
	for range 3 {
		must(t, a.Send(devicetest.Context(t), nil))
		must(t, recv(t, p).Release())
	}
	cfg.Records++
	if _, err := newConn(a.PD().Device(), cfg); err == nil {
		t.Error("more than the most")
	}
}

// TestPostFailsForWaiting has the device refuse a record for which the peer has just made room: all who wait are told, once,
// and the connection can be closed.
// parity: S17
func TestPostFailsForWaiting(t *testing.T) {
	refused := errors.New("no more")
	dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
		{Match: fault.Match{At: fault.AtSend, Ops: []verbs.Opcode{verbs.OpSend}, Skip: 3}, Do: fault.Fail(refused)},
	}})
	over(t, dev, Config{Records: 1, Inline: 256, Linger: -1}, func(a, p *Conn) {
		must(t, a.Send(devicetest.Context(t), []byte("first")))
		sent := make(chan error)
		for _, n := range []int{100, 1000} {
			go func() { sent <- a.Send(context.Background(), make([]byte, n)) }()
		}
		for a.Stats().Waited < 2 { // the first of them asks for room
			runtime.Gosched()
		}
		must(t, recv(t, p).Release())
		for range 2 {
			if err := <-sent; !errors.Is(err, refused) {
				t.Error(err)
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if n := a.tx.waiters.Len(); n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}
