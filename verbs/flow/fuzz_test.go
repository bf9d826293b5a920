package flow

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// fuzzConfig is small, so that limits are near.
var fuzzConfig = Config{Records: 8, Bytes: 2048, Inline: 64, KeepAlive: time.Minute, Linger: time.Second}

// FuzzConn has a peer send a sequence of valid, nearly valid and hostile messages, writes and reads to an end of a connection, whose
// program answers some records and keeps others for a while. The first byte says which end dials, and each operation of the peer
// takes some of the rest. Nothing panics, the end lets go of all that it has, all goroutines end, and another
// client of the same listener is served rightly.
//
// parity: Q04
// fuzz:state
func FuzzConn(f *testing.F) {
	f.Add([]byte{0, 0, 1, 5, 1, 60, 2, 100, 0, 7, 1, 8, 1, 9})
	f.Add([]byte{1, 0, 2, 255, 1, 2, 10, 0, 7, 3, 8, 200, 14, 5, 9, 1, 1})
	f.Add([]byte{0, 3, 1, 16, 0, 0, 0, 0, 0, 70, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 5, 6, 0, 10, 11, 12, 9, 13, 99, 15})
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) { playHostile(t, script) })
	})
}

// playHostile plays one sequence.
func playHostile(t *testing.T, script []byte) {
	if len(script) == 0 || len(script) > 4096 {
		return
	}
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	defer atEnd(t, dev.Close)
	// In simulated time a step lasts for 64 seconds at most, see request and step; the rest needs an hour at most.
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour+time.Duration(len(script))*65*time.Second)
	defer cancel()
	l, err := Listen(dev, loopback, fuzzConfig)
	must(t, err)
	defer atEnd(t, l.Close)
	r, c, err := fuzzPair(ctx, dev, l, script[0]&1 != 0)
	must(t, err)
	defer atEnd(t, r.close)
	var program sync.WaitGroup
	program.Go(func() { answerSome(ctx, t, c) })
	defer func() {
		begin := time.Now()
		atEnd(t, c.Close)
		if took := time.Since(begin); took > maxClose {
			t.Errorf("Close took %v", took)
		}
		program.Wait()
	}()
	f := &fuzzer{rawPeer: r, rest: script[1:]}
	for len(f.rest) > 0 && f.step(ctx) {
		checkBounds(t, c)
	}
	innocent(ctx, t, dev, l)
}

// atEnd is deferred, so that a script that fails ends its goroutines too: one that is left makes synctest end the process, and the
// failure is not reported.
func atEnd(t *testing.T, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Error(err)
	}
}

// fuzzPair makes a connection to a raw peer; the end under test has dialed if active.
func fuzzPair(ctx context.Context, dev *verbs.Device, l *Listener, active bool) (*rawPeer, *Conn, error) {
	if !active {
		return dialRaw(ctx, dev, l)
	}
	vl, err := verbs.Listen(dev, loopback)
	if err != nil {
		return nil, nil, err
	}
	r, c, err := acceptRaw(ctx, dev, vl, fuzzConfig)
	return r, c, errors.Join(err, vl.Close())
}

// answerSome is the program of the end under test: it keeps up to two records, and sends every third back.
func answerSome(ctx context.Context, t *testing.T, c *Conn) {
	var kept []Record
	for n := 0; ; n++ {
		rec, err := c.Recv(ctx)
		if err != nil {
			break
		}
		if got := len(rec.Bytes()); got > fuzzConfig.Bytes {
			t.Errorf("a record of %d bytes", got)
		}
		if n%3 == 0 {
			short, cancel := context.WithTimeout(ctx, time.Second)
			_ = c.Send(short, bytes.Clone(rec.Bytes())) // the peer may give no room, or have ended
			cancel()
		}
		if kept = append(kept, rec); len(kept) > 2 {
			atEnd(t, kept[0].Release)
			kept = kept[1:]
		}
	}
	for _, rec := range kept {
		atEnd(t, rec.Release)
	}
}

// checkBounds checks that the end under test holds no more than it has room for.
func checkBounds(t *testing.T, c *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	records, size := c.rx.window.credit.Outstanding()
	if records > fuzzConfig.Records || size > int64(fuzzConfig.Bytes) || c.rx.n > records || len(c.tx.spare) > fuzzConfig.Records {
		t.Errorf("%d records and %d bytes are here, %d not read", records, size, c.rx.n)
	}
}

// innocent is another client of the listener, whose records come back.
func innocent(ctx context.Context, t *testing.T, dev *verbs.Device, l *Listener) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // of an Accept that no connection has come to
	wg.Go(func() {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		for {
			rec, err := c.Recv(ctx)
			if err != nil {
				break
			}
			if err := errors.Join(c.Send(ctx, rec.Bytes()), rec.Release()); err != nil {
				t.Error(err)
			}
		}
		atEnd(t, c.Close)
	})
	c, err := Dial(ctx, dev, l.Addr(), fuzzConfig)
	must(t, err)
	closing := sync.OnceFunc(func() { atEnd(t, c.Close) })
	defer closing()
	for _, n := range []int{1, 64, 65, 1000} {
		want := fill(make([]byte, n), n)
		must(t, c.Send(ctx, want))
		rec, err := c.Recv(ctx)
		if err != nil || !bytes.Equal(rec.Bytes(), want) {
			t.Fatalf("an innocent client's %d bytes: %v", n, err)
		}
		must(t, rec.Release())
	}
	closing()
	wg.Wait() // without the cancel, because the other end closes orderly
}

// fuzzer is a peer that follows a script.
type fuzzer struct {
	*rawPeer
	rest []byte
	seq  uint32 // of the next record
	at   uint32 // where the next record in the ring begins
	sent uint32 // records that came from the other end, as granted
}

// next takes a byte of the script.
func (f *fuzzer) next() int {
	if len(f.rest) == 0 {
		return 0
	}
	b := f.rest[0]
	f.rest = f.rest[1:]
	return int(b)
}

// step plays one operation, and reports whether the connection goes on.
func (f *fuzzer) step(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status, err := f.do(ctx, f.request())
	if errors.Is(err, context.DeadlineExceeded) { // there is no receive for it
		return false
	}
	return err == nil && status == verbs.StatusSuccess
}

// request makes the next request.
func (f *fuzzer) request() verbs.SendWR {
	send := func(h header, payload []byte) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{f.message(h, payload)}}
	}
	control := header{kind: kindControl, granted: f.sent}
	switch k := f.next(); k % 16 {
	case 0:
		return send(control, nil)
	case 1: // a short record
		n := f.next() % 80
		f.seq++
		return send(header{kind: kindRecord, length: uint32(n), granted: f.sent, seq: f.seq - 1}, make([]byte, n))
	case 2: // a record in the ring, which the peer has written or not
		h := header{kind: kindRecord, flags: inRing, length: uint32(f.next() * 8), offset: f.at, granted: f.sent, seq: f.seq}
		f.seq++
		f.at = (f.at + uint32(f.next())*64) % f.peer.bytes
		return send(h, nil)
	case 3: // any header
		b := make([]byte, headerLen)
		for i := range b {
			b[i] = byte(f.next())
		}
		copy(f.own.Bytes()[rawOut:], b)
		return verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{f.own.SGE(rawOut, headerLen)}}
	case 4: // a write with immediate data
		n := min(f.next()*16, int(f.peer.bytes))
		return verbs.SendWR{Op: verbs.OpWriteImm, SGL: []verbs.SGE{f.own.SGE(rawOut, n)}, Remote: f.peer.ring, Imm: uint32(f.next())}
	case 5:
		wr := send(control, nil)
		wr.Op, wr.Imm = verbs.OpSendImm, uint32(f.next())
		return wr
	case 6:
		wr := send(control, nil)
		wr.Op, wr.InvKey = verbs.OpSendInvalidate, f.peer.ring.RKey+uint32(f.next()%2)
		return wr
	case 7:
		control.flags = flags(f.next())
		return send(control, nil)
	case 8: // a grant
		f.sent += uint32(int8(f.next()))
		control.granted = f.sent
		return send(control, nil)
	case 9:
		return send(header{kind: kindFin, granted: f.sent}, nil)
	case 10: // a write into the ring, in its bounds or not
		to := f.peer.ring
		to.Addr += uint64(f.next() * 16)
		return verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{f.own.SGE(rawOut, f.next())}, Remote: to}
	case 11: // a read of it
		return verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{f.own.SGE(rawOut, f.next())}, Remote: f.peer.ring}
	case 12: // a message of any length
		return verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{f.own.SGE(rawOut, f.next())}}
	case 13: // a foreign key
		to := f.peer.ring
		to.RKey += uint32(f.next())
		return verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{f.own.SGE(rawOut, 8)}, Remote: to}
	case 14: // silence
		time.Sleep(time.Duration(f.next()) * time.Second / 4) //nolint:forbidigo // simulated time
		return send(control, nil)
	default: // the same record again
		return send(header{kind: kindRecord, granted: f.sent, seq: f.seq - uint32(f.next()%3)}, nil)
	}
}

// TestFuzzerReachesFlow makes sure that FuzzConn's seeds come far: a valid sequence is taken whole.
func TestFuzzerReachesFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
		l, err := Listen(dev, loopback, fuzzConfig)
		must(t, err)
		r, c, err := dialRaw(t.Context(), dev, l)
		must(t, err)
		var program sync.WaitGroup
		program.Go(func() { answerSome(t.Context(), t, c) })
		f := &fuzzer{rawPeer: r, rest: []byte{0, 1, 5, 1, 60, 2, 20, 3, 2, 20, 3, 9}}
		for len(f.rest) > 0 {
			if !f.step(t.Context()) {
				t.Fatalf("%d bytes are left: %v", len(f.rest), c.Err())
			}
		}
		synctest.Wait()
		if st := c.Stats(); st.Received != 4 {
			t.Errorf("%+v, %v", st, c.Err())
		}
		must(t, errors.Join(c.Close(), r.close(), l.Close(), dev.Close()))
		program.Wait()
	})
}
