// Package pingpong is the command that bounces messages between two hosts, in the manner of ibv_rc_pingpong.
package pingpong

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// Work request ids of pingpong. They are bits, because two of them are awaited
// at the same time.
const (
	recvID = 1
	sendID = 2
)

// The bytes of a message are those of ibv_rc_pingpong: its filler, and at the
// start of each page the number that its -c writes there, which is always 0.
const (
	filler   = 0x7b
	pageSize = 4096
)

// run carries out pingpong as server or client.
func run(ctx context.Context, o *options, s cli.Streams) (err error) {
	if o.json {
		o.results, s.Out = s.Out, io.Discard
	}
	dev, stop, err := o.security.OpenDevice(ctx, o.device, o.host, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()); stop() }()
	if err := o.fits(dev); err != nil {
		return err
	}
	if o.host != "" {
		ip, err := cli.ResolveHost(ctx, o.host)
		if err != nil {
			return err
		}
		return runClient(ctx, dev, netip.AddrPortFrom(ip, o.port), o, s)
	}
	l, err := listen(ctx, o.port)
	if err != nil {
		return err
	}
	defer cli.Shut(l)
	return runServer(ctx, dev, l, o, s)
}

// bouncer is one side of pingpong.
type bouncer struct {
	*link.Link
	o      *options
	mr     *verbs.MR
	header int         // bytes in front of a received message
	own    oob.QPInfo  // as printed
	oob    *oob.Config // how the queue pair is connected by hand; nil: the connection manager does it

	attempted bool // the queue pair was used for a connection, so it serves no other

	posted  int // receives posted
	pending int // ids that have to complete before the next send
	sends   int // completed
	recvs   int // completed
	send    []verbs.SendWR
	receive []verbs.RecvWR // rxDepth equal requests
	batch   [2]verbs.WC    // completions at hand
	silence *time.Timer    // ends the run when nothing completes
}

// newBouncer makes a side with its receives posted.
func newBouncer(dev *verbs.Device, o *options) (*bouncer, error) {
	if err := o.fits(dev); err != nil {
		return nil, err
	}
	l, err := link.New(dev, link.Config{Sends: 1, Receives: o.rxDepth, OneCQ: true, Service: o.service})
	if err != nil {
		return nil, err
	}
	b := &bouncer{Link: l, o: o}
	if o.service == verbs.UD {
		b.header = verbs.GRHLen
	}
	if err := b.prepare(); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return b, nil
}

// prepare fills the buffer and posts the receives.
func (b *bouncer) prepare() (err error) {
	if b.mr, err = b.Alloc(max(b.header+b.o.size, 1), verbs.LocalWrite); err != nil {
		return err
	}
	if err := b.identify(); err != nil {
		return err
	}
	b.own.Settings = b.o.settings()
	fill(b.payload())
	b.send = []verbs.SendWR{{
		ID: sendID, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{b.mr.SGE(b.header, b.o.size)},
	}}
	sgl := []verbs.SGE{b.mr.SGE(0, b.header+b.o.size)}
	b.receive = make([]verbs.RecvWR, b.o.rxDepth)
	for i := range b.receive {
		b.receive[i] = verbs.RecvWR{ID: recvID, SGL: sgl}
	}
	return b.refill()
}

// payload is the message in the buffer, which is received and sent back.
func (b *bouncer) payload() []byte { return b.mr.Bytes()[b.header:][:b.o.size] }

// refill posts receives up to the depth.
func (b *bouncer) refill() error {
	n, err := b.QP.PostRecv(b.receive[:b.o.rxDepth-b.posted])
	b.posted += n
	if err != nil {
		return fmt.Errorf("couldn't post receive (%d): %w", b.posted, err)
	}
	return nil
}

// postSend posts the message; the answer to it is awaited along with it.
func (b *bouncer) postSend() error {
	if _, err := b.QP.PostSend(b.send); err != nil {
		return b.Cause(fmt.Errorf("couldn't post send: %w", err))
	}
	b.pending = recvID | sendID
	return nil
}

// bounce exchanges the messages and returns how long it took. The client
// sends first.
func (b *bouncer) bounce(ctx context.Context, client bool) (time.Duration, error) {
	b.pending = recvID
	ctx, stop := b.limitSilence(ctx)
	defer stop()
	start := time.Now()
	if client {
		if err := b.postSend(); err != nil {
			return 0, err
		}
	}
	if b.o.events {
		b.SendCQ.SetSpin(0) // sleep at once
	}
	for !b.done() {
		if err := b.step(ctx); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	if b.o.check {
		return took, check(b.payload())
	}
	return took, nil
}

// done reports whether all messages went both ways.
func (b *bouncer) done() bool { return b.recvs >= b.o.iters && b.sends >= b.o.iters }

// step handles the next completions. Those behind the last that counts are
// ignored: a peer that is done hangs up, which flushes spare receives.
func (b *bouncer) step(ctx context.Context) error {
	n, err := b.next(ctx, b.batch[:])
	if err != nil {
		return cli.Reason(ctx, err)
	}
	b.silence.Reset(b.o.timeout)
	for i := range b.batch[:n] {
		if err := b.completed(&b.batch[i]); err != nil || b.done() {
			return err
		}
	}
	return nil
}

// next waits for completions: asleep with -e, polling otherwise.
func (b *bouncer) next(ctx context.Context, wc []verbs.WC) (int, error) {
	if b.o.events {
		return b.SendCQ.Wait(ctx, wc)
	}
	for ctx.Err() == nil {
		for range 1024 {
			if n, err := b.SendCQ.Poll(wc); n > 0 || err != nil {
				return n, err
			}
		}
		runtime.Gosched()
	}
	return 0, context.Cause(ctx)
}

// completed accounts for one completion and sends the next message when its
// time has come.
func (b *bouncer) completed(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return b.Cause(fmt.Errorf("failed status (%d) for wr_id %d: %w", uint32(wc.Status), wc.ID, err))
	}
	switch wc.ID {
	case sendID:
		b.sends++
	case recvID:
		if err := link.CheckArrival(wc, verbs.WCRecv); err != nil {
			return fmt.Errorf("%w; is the other side a pingpong?", err)
		}
		if got := int(wc.Len) - b.header; got != b.o.size {
			return fmt.Errorf("received a message of %d bytes instead of %d; is the other side a pingpong with the same size?", got, b.o.size)
		}
		b.recvs++
		if b.posted--; b.posted <= 1 {
			if err := b.refill(); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("completion for unknown wr_id %d", wc.ID)
	}
	b.pending &^= int(wc.ID)
	if b.pending == 0 && b.sends < b.o.iters {
		return b.postSend()
	}
	return nil
}

// finish prints the result, if there is one, and releases everything.
func (b *bouncer) finish(ctx context.Context, client bool, s cli.Streams) error {
	took, err := b.bounce(ctx, client)
	if err == nil {
		err = result{size: b.o.size, iters: b.o.iters, took: took}.print(b.o.results, s.Out)
	}
	return errors.Join(err, b.Close(ctx))
}

// fill writes the bytes of a message.
func fill(b []byte) {
	for i := range b {
		b[i] = fillerByte(i)
	}
}

func fillerByte(i int) byte {
	if i%pageSize == 0 {
		return 0
	}
	return filler
}

// check names the first page that differs from the pattern of fill.
func check(b []byte) error {
	for i, got := range b {
		if want := fillerByte(i); got != want {
			return fmt.Errorf("invalid data in page %d: byte %d is %#02x instead of %#02x", i/pageSize, i, got, want)
		}
	}
	return nil
}

// result is the measurement of ibv_rc_pingpong.
type result struct {
	size  int // bytes of a message
	iters int
	took  time.Duration
}

// resultJSON is the output of pingpong --json.
type resultJSON struct {
	Size        int     `json:"size"` // bytes of a message
	Iterations  int     `json:"iterations"`
	Seconds     float64 `json:"seconds"`
	MbitSeconds float64 `json:"mbit_per_second"` // both ways, 10^6 bits
	Usec        float64 `json:"usec_per_iteration"`
}

// print writes the result as JSON, if there is a writer for that, or else for people.
func (r result) print(asJSON, people io.Writer) error {
	if asJSON == nil {
		return r.write(people)
	}
	us := r.took.Seconds() * 1e6
	return json.NewEncoder(asJSON).Encode(resultJSON{
		Size: r.size, Iterations: r.iters, Seconds: r.took.Seconds(),
		MbitSeconds: cli.Round2(float64(r.size) * float64(r.iters) * 2 * 8 / us), Usec: cli.Round2(us / float64(r.iters)),
	})
}

// write prints the two lines of ibv_rc_pingpong. Bytes count both directions.
func (r result) write(w io.Writer) error {
	seconds := r.took.Seconds()
	micros := seconds * 1e6
	bytes := int64(r.size) * int64(r.iters) * 2
	_, err := fmt.Fprintf(w, "%d bytes in %.2f seconds = %.2f Mbit/sec\n%d iters in %.2f seconds = %.2f usec/iter\n",
		bytes, seconds, float64(bytes)*8/micros, r.iters, seconds, micros/float64(r.iters))
	return err
}
