package perfverbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
)

// errRoundOver is why a server's part in measuring a size ends.
var errRoundOver = errors.New("the client is done with this size")

// run carries out perf verbs as server or client.
func run(ctx context.Context, o *options, s cli.Streams) (err error) {
	server := o.peer
	if host, _, err := net.SplitHostPort(server); err == nil {
		server = host
	}
	dev, stop, err := o.security.OpenDevice(ctx, o.device, server, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()); stop() }()
	defer o.onePoller()()
	if o.peer != "" {
		return runClient(ctx, dev, o, s)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listenAddr(o.listen))
	if err != nil {
		return fmt.Errorf("--listen %s: %w", o.listen, err)
	}
	defer cli.Shut(l)
	return runServer(ctx, dev, l, o, s)
}

// outside reports whether the device makes progress outside of the process.
func (o *options) outside() bool { return o.device != "" && o.device != cli.SoftwareDevice }

// onePoller prepares the process for polling. A goroutine that polls a device outside of the process needs one processor and no
// second thread: with more, each time that it gives way the runtime wakes a thread that looks for work in vain, on a
// processor that the device's driver or the other side could use. The software device's own goroutines do have work. The
// function that it returns undoes it.
func (o *options) onePoller() (undo func()) {
	if o.events || !o.outside() {
		return func() {}
	}
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}

// runServer serves clients one after the other until ctx ends, or with --once the first client that sends a valid request.
func runServer(ctx context.Context, dev *verbs.Device, l net.Listener, o *options, s cli.Streams) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	if err := o.fits(&attr); err != nil { // before a client can wait for this server
		return err
	}
	if !attr.Caps.Has(verbs.CapRawState) {
		if err := link.CheckDataPort(dev, l.Addr(), o.dataPort); err != nil {
			return err
		}
	}
	if err := announce(l.Addr(), attr.Name, o, s); err != nil {
		return err
	}
	defer cli.InterruptAccept(ctx, l)()
	for {
		c, err := l.Accept()
		switch {
		case err != nil && ctx.Err() != nil && !o.once:
			return nil // an interrupt is the normal end of a server
		case err != nil:
			return fmt.Errorf("wait for a client: %w", cli.Reason(ctx, err))
		}
		known, err := serveClient(ctx, dev, c, o)
		switch {
		case known && o.once && err == nil: // also if an interrupt came just then
			return nil
		case ctx.Err() != nil && err == nil:
			return nil // an interrupt is how a server ends
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case known && o.once:
			return err
		case !known:
			s.NotePeer(c.RemoteAddr(), "perf verbs: %s: %s; is it a cinnabar perf verbs?", c.RemoteAddr(), cli.Printable(cli.OneLine(err)))
		case err != nil:
			s.NotePeer(c.RemoteAddr(), "perf verbs: client %s: %s", c.RemoteAddr(), cli.Printable(cli.OneLine(err)))
		}
	}
}

// announce says where clients are waited for.
func announce(addr net.Addr, device string, o *options, s cli.Streams) error {
	if o.json {
		return json.NewEncoder(s.Out).Encode(struct {
			Event   string `json:"event"`
			Address string `json:"address"`
			Device  string `json:"device"`
		}{"listening", addr.String(), device})
	}
	_, err := fmt.Fprintf(s.Out, "waiting for a client at %s: %s of %s, device %s\n", addr, o.measure(), o.op, device)
	return err
}

// serveClient serves the client on c. known reports that it is one.
func serveClient(ctx context.Context, dev *verbs.Device, c net.Conn, o *options) (known bool, err error) {
	defer cli.Shut(c)
	e, err := newSide(dev, o)
	if err != nil {
		return true, err
	}
	defer func() { err = errors.Join(err, e.end(ctx, err)) }()
	if known, err = e.meet(ctx, c, false); err != nil {
		return known, err
	}
	return true, e.talk(ctx, c, e.serve)
}

// runClient connects to the server, measures every size and prints a line for each.
func runClient(ctx context.Context, dev *verbs.Device, o *options, s cli.Streams) (err error) {
	c, err := dial(ctx, o)
	if err != nil {
		return err
	}
	defer cli.Shut(c)
	e, err := newSide(dev, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.end(ctx, err)) }()
	if _, err = e.meet(ctx, c, true); err != nil {
		return fmt.Errorf("server %s: %w", o.peer, err)
	}
	return e.talk(ctx, c, func(ctx context.Context) error { return e.measureAll(ctx, s) })
}

// dial connects to the server for the exchange.
func dial(ctx context.Context, o *options) (net.Conn, error) {
	d := net.Dialer{Timeout: meetTimeout}
	c, err := d.DialContext(ctx, "tcp", serverAddr(o.peer))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w; is a cinnabar perf verbs server running there?", o.peer, cli.Reason(ctx, err))
	}
	return c, nil
}

// end releases everything. The connection ends in order if all went well; otherwise the other side perhaps does not answer, and end does not wait for it.
func (e *side) end(ctx context.Context, failed error) error {
	if failed != nil {
		return e.Abandon()
	}
	return e.Close(ctx)
}

// talk has the conversation with the other side, and sends it the error if the conversation ends with one.
func (e *side) talk(ctx context.Context, c net.Conn, part func(context.Context) error) error {
	control, ctx := openControl(ctx, link.NewExchange(c), e.o.timeout)
	defer control.close()
	e.control = control
	err := part(ctx)
	if err != nil {
		err = cli.Reason(ctx, err) // the cause that ended the conversation is the failure
		control.failed(err)
	}
	return err
}

// measureAll is the client's part.
func (e *side) measureAll(ctx context.Context, s cli.Streams) error {
	report := &report{o: e.o, device: e.attr.Name, transport: e.attr.Transport.String(), w: s.Out}
	if err := report.header(); err != nil {
		return err
	}
	for _, size := range e.o.sizes {
		r, err := e.measureWithServer(ctx, s, size)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", e.o.op, cli.SizeText(size), err)
		}
		if err := report.line(r); err != nil {
			return err
		}
	}
	if err := e.control.say(notice{Word: sayBye}); err != nil {
		return err
	}
	return e.control.expect(ctx, sayBye)
}

// measureWithServer measures one size once the server is ready for it.
func (e *side) measureWithServer(ctx context.Context, s cli.Streams, size int64) (r result, err error) {
	if err := e.control.say(notice{Word: sayBegin, Size: size}); err != nil {
		return r, err
	}
	if err := e.control.expect(ctx, sayReady); err != nil {
		return r, err
	}
	open := make(chan struct{})
	close(open)
	stop := cli.RateLines{To: s, Every: e.o.interval, Size: size, Bytes: size, Unit: e.o.unit(), Made: e.made}.Start(open)
	r, err = e.measure(ctx, size)
	stop()
	if err != nil {
		return r, err
	}
	return r, e.control.say(notice{Word: sayDone})
}

// serve is the server's part.
func (e *side) serve(ctx context.Context) error {
	for {
		said, err := e.control.hear(ctx)
		switch {
		case err != nil:
			return err
		case said.Word == sayBye:
			return e.control.bye(ctx)
		case said.Word != sayBegin || !slices.Contains(e.o.sizes, said.Size):
			return fmt.Errorf("the client says %.64q for %d bytes, which is not its turn to say; is it the same version of cinnabar?", said.Word, said.Size)
		}
		if err := e.serveSize(ctx, said.Size); err != nil {
			return fmt.Errorf("%s of %s: %w", e.o.op, cli.SizeText(said.Size), err)
		}
	}
}

// serveSize does the server's part in measuring one size, until the client is done with it.
func (e *side) serveSize(ctx context.Context, size int64) error {
	e.load(size)
	if err := e.control.say(notice{Word: sayReady}); err != nil {
		return err
	}
	ctx, over := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		err := e.control.expect(ctx, sayDone)
		if err == nil {
			err = errRoundOver
		}
		over(err)
	})
	err := e.part(ctx)
	over(err) // for a part that failed
	watch.Wait()
	if errors.Is(err, errRoundOver) {
		return nil
	}
	return err
}

// part is the server's part while the client measures, until ctx ends.
func (e *side) part(ctx context.Context) error {
	switch {
	case e.o.latency && !e.o.op.fetches():
		return e.echo(ctx)
	case e.o.op.received():
		return e.sink(ctx)
	}
	<-ctx.Done() // its memory is read and written without it
	return context.Cause(ctx)
}
