// Package rping is the command that pings a peer by RDMA reads and writes, on the wire of librdmacm's rping.
package rping

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
)

// maxClients bounds how many clients a persistent server serves at a time;
// further ones wait in the listener's backlog.
const maxClients = 64

// Layout of the region for messages: two receive slots, then one to send from.
const (
	slots   = 2
	sendOff = slots * advertLen
)

// run carries out rping.
func run(ctx context.Context, o *options, s cli.Streams) (err error) {
	server := ""
	if o.client {
		server = o.host
	} else {
		o.security.Reload()
	}
	dev, stop, err := o.security.OpenDevice(ctx, o.device, server, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()); stop() }()
	if o.client {
		return runClient(ctx, dev, o, s)
	}
	l, err := verbs.Listen(dev, o.addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.addr, err)
	}
	defer cli.Shut(l)
	if o.debug {
		if _, err := fmt.Fprintf(s.Out, "listening on %s\n", l.Addr()); err != nil {
			return err
		}
	}
	return runServer(ctx, dev, l, o, s)
}

// runServer serves the clients of l: one, or with -P all until ctx ends.
func runServer(ctx context.Context, dev *verbs.Device, l *verbs.Listener, o *options, s cli.Streams) error {
	if o.persistent {
		return serveAll(ctx, dev, l, o, s)
	}
	r, err := l.Accept(ctx)
	if err != nil {
		return fmt.Errorf("wait for a client: %w", cli.Reason(ctx, err))
	}
	if err := l.Close(); err != nil { // one client only: turn others away at once
		return errors.Join(err, r.Reject(nil))
	}
	return serve(ctx, dev, r, o, s)
}

// serveAll serves clients until ctx ends. The failure of one of
// them is printed and concerns no other.
func serveAll(ctx context.Context, dev *verbs.Device, l *verbs.Listener, o *options, s cli.Streams) error {
	s.Out, s.Err = &cli.SyncWriter{W: s.Out}, &cli.SyncWriter{W: s.Err}
	var clients sync.WaitGroup
	defer clients.Wait()
	free := make(chan struct{}, maxClients)
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil // an interrupt is the normal end of a server
			}
			return fmt.Errorf("wait for clients: %w", err)
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return r.Reject(nil)
		}
		clients.Go(func() {
			defer func() { <-free }()
			if err := serve(ctx, dev, r, o, s); err != nil {
				s.NotePeer(net.TCPAddrFromAddrPort(r.RemoteAddr()), "rping: client %s: %s", r.RemoteAddr(), cli.Printable(cli.OneLine(err)))
			}
		})
	}
}

// end is one side of rping.
type end struct {
	*link.Link
	o       *options
	s       cli.Streams
	role    string    // "server" or "client"
	control *verbs.MR // the messages
	data    *verbs.MR // the memory to read into and to write from, the client's sink
	start   *verbs.MR // the client's source; nil on the server
}

// newEnd makes a side with its receives posted.
func newEnd(dev *verbs.Device, o *options, s cli.Streams) (*end, error) {
	l, err := link.New(dev, link.Config{Sends: sendDepth, Receives: slots})
	if err != nil {
		return nil, err
	}
	e := &end{Link: l, o: o, s: s, role: "server"}
	if err := e.prepare(); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return e, nil
}

func (e *end) prepare() (err error) {
	const remote = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite
	if e.control, err = e.Alloc(sendOff+advertLen, verbs.LocalWrite); err != nil {
		return err
	}
	if e.data, err = e.Alloc(e.o.size, remote); err != nil {
		return err
	}
	if e.o.client {
		e.role = "client"
		if e.start, err = e.Alloc(e.o.size, remote); err != nil {
			return err
		}
	}
	if e.o.selfQP {
		init := verbs.QPAttr{
			Mask:  verbs.AttrState | verbs.AttrPort | verbs.AttrAccess,
			State: verbs.StateInit, Port: 1, Access: verbs.RemoteRead | verbs.RemoteWrite,
		}
		if err := e.QP.Modify(init); err != nil {
			return fmt.Errorf("move the queue pair to INIT by hand (-q): %w", err)
		}
	}
	for slot := range slots {
		if err := e.repost(uint64(slot)); err != nil {
			return err
		}
	}
	return nil
}

// param returns the parameters that both sides ask of a connection, as the C program does.
func (e *end) param() verbs.ConnParam {
	return verbs.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetry: verbs.MaxRNRRetry}
}

// repost gives a receive slot back to the queue pair.
func (e *end) repost(slot uint64) error {
	return e.PostRecv(verbs.RecvWR{ID: slot, SGL: []verbs.SGE{e.control.SGE(int(slot)*advertLen, advertLen)}})
}

// message waits for the peer's next message, which is copied out of its slot.
func (e *end) message(ctx context.Context) (advert, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.o.idle, fmt.Errorf("the peer has sent nothing for %v; it is frozen, or the network between is cut", e.o.idle))
	defer cancel()
	wc, err := e.Received(ctx, verbs.WCRecv)
	if err != nil {
		return advert{}, err
	}
	slot := e.control.Bytes()[int(wc.ID)*advertLen:][:advertLen]
	a, err := parseAdvert(slot[:min(int(wc.Len), advertLen)])
	if err != nil {
		return advert{}, err
	}
	return a, e.repost(wc.ID)
}

// sendWR is the request that sends a, from the one slot for sending: the caller
// sees it completed before it makes the next.
func (e *end) sendWR(a advert) verbs.SendWR {
	appendAdvert(e.control.Bytes()[sendOff:sendOff], a)
	return verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{e.control.SGE(sendOff, advertLen)}}
}

// do posts requests and waits until all are done.
func (e *end) do(ctx context.Context, wrs ...verbs.SendWR) error {
	if err := e.Post(wrs...); err != nil {
		return err
	}
	return e.Sent(ctx, len(wrs))
}

// debugf prints a step where -d asked for it.
func (e *end) debugf(format string, args ...any) {
	if e.o.debug {
		_, _ = fmt.Fprintf(e.s.Out, format+"\n", args...) // a lost line does not change the ping
	}
}

// finish ends the connection and says so as the C program does. The orderly
// end that the peer chose is no failure.
func (e *end) finish(ctx context.Context, err error) error {
	if link.Ended(err) {
		err = nil
	}
	if e.Conn != nil && e.o.selfQP && err == nil { // as the C program does with a queue pair of its own
		err = e.QP.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr})
	}
	if e.Conn != nil {
		err = errors.Join(err, e.Disconnect(ctx))
		e.s.Notef("%s DISCONNECT EVENT...\n", e.role)
	}
	return errors.Join(err, e.Release())
}

// serve answers one connect request and serves the client until it leaves.
func serve(ctx context.Context, dev *verbs.Device, r *verbs.ConnRequest, o *options, s cli.Streams) error {
	e, err := newEnd(dev, o, s)
	if err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	if err := e.Accept(ctx, r, e.param()); err != nil {
		return errors.Join(err, e.Release())
	}
	e.debugf("accepted %s", e.Conn.RemoteAddr())
	for err == nil {
		err = e.serveRound(ctx)
	}
	return e.finish(ctx, err)
}

// serveRound reads the client's data and writes it back.
func (e *end) serveRound(ctx context.Context) error {
	source, err := e.message(ctx)
	if err != nil {
		return err
	}
	e.debugf("source %s, %d bytes", source.remote, source.size)
	if err := source.check(e.data.Len()); err != nil {
		return err
	}
	read := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, Remote: source.remote, SGL: []verbs.SGE{e.data.SGE(0, int(source.size))}}
	if err := e.do(ctx, read); err != nil {
		return fmt.Errorf("read the client's data: %w", err)
	}
	ping := e.data.Bytes()[:source.size]
	if e.o.verbose {
		if _, err := fmt.Fprintf(e.s.Out, "server ping data: %s\n", cli.Printable(string(pingText(ping)))); err != nil {
			return err
		}
	}
	if err := e.do(ctx, e.sendWR(advert{})); err != nil {
		return err
	}
	sink, err := e.message(ctx)
	if err != nil {
		return err
	}
	e.debugf("sink %s, %d bytes", sink.remote, sink.size)
	n := echoLen(ping)
	if uint64(n) > uint64(sink.size) {
		return fmt.Errorf("the client offers %d bytes for %d bytes of ping data; its size must not change between the two", sink.size, n)
	}
	write := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: sink.remote, SGL: []verbs.SGE{e.data.SGE(0, n)}}
	return e.do(ctx, write, e.sendWR(advert{}))
}

// resultJSON is the output of rping --json at the end.
type resultJSON struct {
	Rounds  int32   `json:"rounds"`
	Size    int     `json:"size"` // bytes of ping data
	Seconds float64 `json:"seconds"`
	Usec    float64 `json:"usec_per_round"`
}

// runClient connects and pings.
func runClient(ctx context.Context, dev *verbs.Device, o *options, s cli.Streams) error {
	e, err := newEnd(dev, o, s)
	if err != nil {
		return err
	}
	if err := e.Dial(ctx, o.addr, e.param()); err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w; is a server of rping running there?", err)
		}
		return errors.Join(err, e.Release())
	}
	e.debugf("connected to %s", e.Conn.RemoteAddr())
	start := time.Now()
	err = e.pingAll(ctx)
	if err == nil && o.json {
		took := time.Since(start)
		err = json.NewEncoder(s.Out).Encode(resultJSON{Rounds: o.count, Size: o.size, Seconds: took.Seconds(), Usec: cli.Round2(took.Seconds() * 1e6 / float64(o.count))})
	}
	return e.finish(ctx, err)
}

// pingAll makes the rounds that were asked for.
func (e *end) pingAll(ctx context.Context) error {
	if got := e.Conn.LocalAddr().Addr().Unmap(); e.o.source.IsValid() && got != e.o.source {
		return fmt.Errorf("connected from %s instead of %s: the software device takes the source address of the route; leave -I out or change the route", got, e.o.source)
	}
	n := int32(0)
	for done := int32(0); e.o.count == 0 || done < e.o.count; done++ {
		if err := e.ping(ctx, n); link.Ended(err) { // the client is the one to end it
			return fmt.Errorf("the server left in round %d; see its messages", n)
		} else if err != nil {
			return err
		}
		n = nextPing(n)
	}
	return nil
}

// ping makes round n.
func (e *end) ping(ctx context.Context, n int32) error {
	fillPing(e.start.Bytes(), n)
	size := uint32(e.o.size) // at most 64 KiB
	for _, mr := range []*verbs.MR{e.start, e.data} {
		e.debugf("offering %s, %d bytes", mr.Remote(), size)
		if err := e.do(ctx, e.sendWR(advert{remote: mr.Remote(), size: size})); err != nil {
			return err
		}
		if _, err := e.message(ctx); err != nil {
			return err
		}
	}
	if e.o.validate && !bytes.Equal(e.start.Bytes(), e.data.Bytes()) {
		return fmt.Errorf("data mismatch in round %d: the server wrote back other bytes than it read", n)
	}
	if e.o.verbose {
		if _, err := fmt.Fprintf(e.s.Out, "ping data: %s\n", cli.Printable(string(pingText(e.data.Bytes())))); err != nil {
			return err
		}
	}
	return nil
}
