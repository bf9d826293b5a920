package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

const (
	// limit is the time after which a program ends with an error, because an event that it waits for did not come.
	limit = time.Minute
	// depth is the number of entries of a completion queue. The queues of a queue pair have 128 entries each.
	depth = 256
)

// Loopback is an address of this machine, with a port that the system chooses.
var Loopback = netip.MustParseAddrPort("127.0.0.1:0")

// Lab has two devices that stand for two machines. It is used by one goroutine at a time.
type Lab struct {
	Client, Server *verbs.Device

	listener *verbs.Listener
	at       netip.AddrPort // that clients dial
	recorder *recorder      // nil: no capture
	ends     []*End
}

// Open opens both devices with one configuration. If capture is not nil, all connections are recorded into it.
func Open(cfg iwarp.Config, capture io.Writer) (*Lab, error) {
	l := new(Lab)
	var err error
	if l.Client, err = iwarp.Open(cfg); err != nil {
		return nil, err
	}
	if l.Server, err = iwarp.Open(cfg); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if l.listener, err = verbs.Listen(l.Server, Loopback); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if capture != nil {
		l.recorder = newRecorder(capture)
	}
	if l.at, err = l.Via(l.listener.Addr()); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Via returns the address that a program dials instead of addr, so that the connection is recorded. Without a capture that is addr.
func (l *Lab) Via(addr netip.AddrPort) (netip.AddrPort, error) {
	if l.recorder == nil {
		return addr, nil
	}
	return l.recorder.forward(addr)
}

// Disconnect ends all connections in order: each end sends the requests that it has posted before.
func (l *Lab) Disconnect(ctx context.Context) error {
	var errs []error
	for _, e := range l.ends {
		if e.Conn != nil {
			errs = append(errs, e.Conn.Disconnect(ctx))
		}
	}
	return errors.Join(errs...)
}

// Close ends all connections at once, closes both devices, and completes the capture. It returns the errors of all these steps.
func (l *Lab) Close() error {
	var errs []error
	for _, e := range l.ends {
		errs = append(errs, e.close())
	}
	l.ends = nil
	if l.listener != nil {
		errs = append(errs, l.listener.Close())
	}
	for _, d := range []*verbs.Device{l.Client, l.Server} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	if l.recorder != nil {
		errs = append(errs, l.recorder.close())
	}
	return errors.Join(errs...)
}

// Pair makes a connection, and ends the program if that fails.
func (l *Lab) Pair(ctx context.Context) (client, server *End) {
	client, server, err := l.Connect(ctx, verbs.ConnParam{})
	if err != nil {
		Fail(err)
	}
	return client, server
}

// Connect makes a connection between the devices. The server's end has the parameters accept. Close of the Lab closes both ends.
func (l *Lab) Connect(ctx context.Context, accept verbs.ConnParam) (client, server *End, err error) {
	if client, err = l.end(l.Client); err != nil {
		return nil, nil, err
	}
	if server, err = l.end(l.Server); err != nil {
		return nil, nil, err
	}
	return client, server, l.join(ctx, client, server, accept)
}

// join connects the queue pairs of two ends: client of the device Client, and server of the device Server.
func (l *Lab) join(ctx context.Context, client, server *End, accept verbs.ConnParam) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		request, err := l.listener.Accept(ctx)
		if err == nil {
			server.Conn, err = request.Accept(ctx, server.QP, accept)
		}
		accepted <- err
	}()
	var err error
	if client.Conn, err = verbs.Dial(ctx, client.QP, l.at, verbs.ConnParam{}); err != nil {
		cancel() // Accept would wait for a request that does not come
	}
	return errors.Join(err, <-accepted)
}

// Adopt makes Close of the Lab close the objects of an end that the program has made itself. Fields may be nil.
func (l *Lab) Adopt(e *End) { l.ends = append(l.ends, e) }

// Dial connects a new end of the device Client with an end of the device Server that the program has made.
func (l *Lab) Dial(ctx context.Context, server *End) (client *End, err error) {
	if client, err = l.end(l.Client); err != nil {
		return nil, err
	}
	return client, l.join(ctx, client, server, verbs.ConnParam{})
}

// End is one end of a connection, with the objects that its program uses. Its methods are safe for concurrent use after Connect.
type End struct {
	PD   *verbs.PD
	CQ   *verbs.CQ // for the completions of sends and of receives
	QP   *verbs.QP
	Conn *verbs.Conn

	regions []*verbs.MR
}

// end makes the objects of an end in a protection domain of their own.
func (l *Lab) end(d *verbs.Device) (*End, error) {
	pd, err := d.AllocPD()
	if err != nil {
		return nil, err
	}
	e := &End{PD: pd}
	l.ends = append(l.ends, e)
	if e.CQ, err = d.CreateCQ(depth); err != nil {
		return nil, err
	}
	e.QP, err = pd.CreateQP(verbs.QPConfig{SendCQ: e.CQ})
	return e, err
}

// Alloc registers size bytes of new memory. It is PD.AllocMR, and Close of the Lab closes the region. Alloc is called by one goroutine
// at a time.
func (e *End) Alloc(size int, access verbs.Access) (*verbs.MR, error) {
	mr, err := e.PD.AllocMR(size, access)
	if err == nil {
		e.regions = append(e.regions, mr)
	}
	return mr, err
}

// Words registers n new numbers of 64 bits, for polling and for atomics. It is verbs.RegSlice, and Close of the Lab closes the region.
func (e *End) Words(n int, access verbs.Access) ([]uint64, *verbs.MR, error) {
	words := make([]uint64, n)
	mr, err := verbs.RegSlice(e.PD, words, access)
	if err == nil {
		e.regions = append(e.regions, mr)
	}
	return words, mr, err
}

// Send posts one request to the send queue.
func (e *End) Send(wr verbs.SendWR) error {
	_, err := e.QP.PostSend([]verbs.SendWR{wr})
	return err
}

// Receive posts a receive with a number and the memory for the message. With nil memory it takes a message without bytes, or a write with
// immediate data.
func (e *End) Receive(id uint64, mr *verbs.MR) error {
	wr := verbs.RecvWR{ID: id}
	if mr != nil {
		wr.SGL = []verbs.SGE{mr.SGE(0, mr.Len())}
	}
	_, err := e.QP.PostRecv([]verbs.RecvWR{wr})
	return err
}

// Next returns the next completion of the end, which may be a bad one.
func (e *End) Next(ctx context.Context) (verbs.WC, error) {
	var wc [1]verbs.WC
	_, err := e.CQ.Wait(ctx, wc[:])
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return wc[0], err
}

// Wait returns the next completion of the end. A bad completion is an error.
func (e *End) Wait(ctx context.Context) (verbs.WC, error) {
	wc, err := e.Next(ctx)
	if err != nil {
		return wc, err
	}
	return wc, wc.Err()
}

// close closes the objects of the end, and with them the connection.
func (e *End) close() error {
	var errs []error
	if e.QP != nil {
		errs = append(errs, e.QP.Close())
	}
	for _, mr := range e.regions {
		errs = append(errs, mr.Close())
	}
	if e.CQ != nil {
		errs = append(errs, e.CQ.Close())
	}
	if e.PD != nil {
		errs = append(errs, e.PD.Close())
	}
	return errors.Join(errs...)
}

// Run is the main function of a lesson's program: it opens a Lab, calls lesson, and closes the Lab. With the option -capture FILE it
// records all connections. With -capture - the capture goes to standard output, and the lines of the lesson go nowhere.
func Run(cfg iwarp.Config, lesson func(ctx context.Context, l *Lab)) {
	path := flag.String("capture", "", "write the bytes of all connections to `FILE`, for cinnabar wire; - is standard output, and the program prints nothing then")
	flag.Parse()
	if flag.NArg() > 0 {
		Fail(fmt.Errorf("argument %q: the program takes the option -capture FILE only", flag.Arg(0)))
	}
	var capture io.Writer
	switch *path {
	case "":
	case "-":
		capture, os.Stdout = os.Stdout, Must(os.OpenFile(os.DevNull, os.O_WRONLY, 0))
	default:
		f := Must(os.Create(*path))
		defer func() { Check(f.Close()) }()
		capture = f
	}
	l := Must(Open(cfg, capture))
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("the program waits for more than %v: an event that it expects does not come", limit))
	defer cancel()
	lesson(ctx, l)
	Check(l.Disconnect(ctx))
	Check(l.Close())
}

// Must returns v, and ends the program if err is not nil.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Check ends the program if err is not nil.
func Check(err error) {
	if err != nil {
		Fail(err)
	}
}

// Fail ends the program with an error on standard error.
func Fail(err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
	os.Exit(1) //nolint:forbidigo // a lesson ends at its first error, in any of its goroutines
}

// ErrUnsolved is the error of an exercise's function as it is delivered.
var ErrUnsolved = errors.New("not solved yet")

// Unsolved returns the error of an exercise's function as it is delivered, with a hint.
func Unsolved(function, hint string) error {
	return fmt.Errorf("%w: write the function %s in exercise.go. Hint: %s", ErrUnsolved, function, hint)
}

// Chunk is a piece of memory, of Size bytes from Offset on.
type Chunk struct{ Offset, Size int }
