package compare

import (
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// The two sides of compare steer each other over the TCP connection of the
// exchange, so that nothing but the job itself uses the measured connections:
// the parent names a way, the peer says that it is ready, the data moves, the
// parent says that it is done, and the peer reports.

// answer is the peer's message with the address at which it accepts the TCP connection.
type answer struct {
	TCP netip.AddrPort `json:"tcp"`
}

// step is a message of the parent during the measurements.
type step struct {
	Way  string `json:"way,omitempty"`
	Done bool   `json:"done,omitempty"` // the data of the way under way has been sent
}

// report is the peer's answer, with the costs of its side of a way.
type report struct {
	Ready  bool     `json:"ready,omitempty"`
	Usage  usage    `json:"usage"`
	Calls  int64    `json:"calls"`
	Staged uint64   `json:"staged"` // bytes
	Digest [32]byte `json:"digest"`
}

// comparer is the sending side.
type comparer struct {
	*link.Link
	x      *link.Exchange
	dev    *verbs.Device
	job    job
	peer   verbs.Region
	data   *verbs.MR
	tcp    net.Conn
	digest [32]byte // of the memory

	inCalls time.Duration // inside the calls that move data, of the way under way
}

// newComparer registers memory and fills it with random bytes.
func newComparer(dev *verbs.Device, x *link.Exchange, job job) (*comparer, error) {
	l, err := link.New(dev, link.Config{Sends: window, Receives: window})
	if err != nil {
		return nil, err
	}
	c := &comparer{Link: l, x: x, dev: dev, job: job}
	if c.data, err = l.Alloc(job.memory(), verbs.LocalWrite); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	crand.Read(c.data.Bytes()) // never fails
	c.digest = sha256.Sum256(c.data.Bytes())
	return c, nil
}

// measureAll connects to the peer by a queue pair and by TCP, and measures every way.
func (c *comparer) measureAll(ctx context.Context) ([]row, error) {
	if err := c.meet(ctx); err != nil {
		return nil, err
	}
	defer cli.Shut(c.tcp)
	defer cli.Interrupt(ctx, c.tcp)()
	var rows []row
	for _, w := range []struct {
		name string
		move func(context.Context) error
	}{{wayTCP, c.moveTCP}, {wayWrite, c.moveWrite}, {waySend, c.moveSend}} {
		row, err := c.measure(ctx, w.name, w.move)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// meet sends the peer the job, and connects a queue pair and a TCP connection to it.
func (c *comparer) meet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, link.ExchangeTimeout)
	defer cancel()
	if err := c.x.Send(c.job); err != nil {
		return err
	}
	var a answer
	if err := c.x.Receive(ctx, &a); err != nil {
		return err
	}
	info, err := c.x.Connect(ctx, c.Link, oob.Config{Active: true})
	if err != nil {
		return err
	}
	c.peer = info.Region
	if c.peer.Size != uint64(c.data.Len()) {
		return fmt.Errorf("out-of-band exchange: the peer offers %d bytes of memory instead of %d", c.peer.Size, c.data.Len())
	}
	var d net.Dialer
	if c.tcp, err = d.DialContext(ctx, "tcp", a.TCP.String()); err != nil {
		return fmt.Errorf("connect to the peer by TCP: %w", err)
	}
	return nil
}

// measure runs one way. The time ends when the data is known to be in the
// peer's memory.
func (c *comparer) measure(ctx context.Context, way string, move func(context.Context) error) (row, error) {
	if _, err := c.step(ctx, step{Way: way}, true); err != nil {
		return row{}, err
	}
	c.inCalls = 0
	before, staged := readUsage(), stagedBytes(c.dev, stagedBySender)
	start := time.Now()
	if err := move(ctx); err != nil {
		return row{}, err
	}
	took := time.Since(start)
	cost := readUsage().since(before)
	staged = stagedBytes(c.dev, stagedBySender) - staged
	report, err := c.step(ctx, step{Done: true}, false)
	if err != nil {
		return row{}, err
	}
	if report.Digest != c.digest {
		return row{}, fmt.Errorf("verification failed: SHA-256 of the memory is %x here and %x at the peer", c.digest, report.Digest)
	}
	return row{
		Way: way, Bytes: c.job.Size, Seconds: took.Seconds(), MiBPerSecond: cli.MiBPerSecond(c.job.Size, took),
		UserCopies: float64(staged+report.Staged) / float64(c.job.Size), KernelCopies: 2,
		SenderInCalls: 100 * c.inCalls.Seconds() / max(took.Seconds(), 1e-9),
		SenderWakeups: wakeups(cost), ReceiverWakeups: wakeups(report.Usage),
		ReceiverCalls: report.Calls, ReceiverCPU: milliseconds(report.Usage.CPU), Verified: true,
	}, nil
}

// step sends the peer a step and returns its answer.
func (c *comparer) step(ctx context.Context, s step, wantReady bool) (report, error) {
	var r report
	if err := c.x.Send(s); err != nil {
		return r, err
	}
	if err := c.x.Receive(ctx, &r); err != nil {
		return r, err
	}
	if r.Ready != wantReady {
		return r, errors.New("out-of-band exchange: the peer answered out of turn")
	}
	return r, nil
}

// timed adds the duration of a call that moves data.
func (c *comparer) timed(call func() error) error {
	start := time.Now()
	err := call()
	c.inCalls += time.Since(start)
	return err
}

// moveTCP writes every piece and waits for the one byte that says all came.
func (c *comparer) moveTCP(context.Context) error {
	for n := range c.job.count() {
		off, size := c.job.piece(n)
		err := c.timed(func() error {
			_, err := c.tcp.Write(c.data.Bytes()[off : off+size])
			return err
		})
		if err != nil {
			return fmt.Errorf("write piece %d: %w", n, err)
		}
	}
	var all [1]byte
	if _, err := c.tcp.Read(all[:]); err != nil {
		return fmt.Errorf("wait until all has come: %w", err)
	}
	return nil
}

// moveWrite writes every piece into the peer's memory. A read of no bytes behind
// the writes returns only when they are placed, without asking the receiving
// program.
func (c *comparer) moveWrite(ctx context.Context) error {
	w := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled}
	if err := c.stream(ctx, w, nil); err != nil {
		return err
	}
	if err := c.Post(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, Remote: c.peer.RemoteAddr}); err != nil {
		return err
	}
	return c.Sent(ctx, 1)
}

// moveSend sends every piece into a receive of the peer's. An empty message
// comes back for every half window that the peer has posted anew, so that no
// piece meets an empty queue; the last one says that all came.
func (c *comparer) moveSend(ctx context.Context) error {
	for range creditReceives {
		if err := c.PostRecv(verbs.RecvWR{}); err != nil {
			return err
		}
	}
	credit := int64(window)
	err := c.stream(ctx, verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled}, func() error {
		if credit--; credit >= 0 {
			return nil
		}
		credit += creditStep
		return c.credit(ctx)
	})
	if err != nil {
		return err
	}
	for range creditsLeft(c.job.count()) {
		if err := c.credit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// credit waits for one of the peer's empty messages, and posts a receive for a further one.
func (c *comparer) credit(ctx context.Context) error {
	if _, err := c.Received(ctx, verbs.WCRecv); err != nil {
		return err
	}
	return c.PostRecv(verbs.RecvWR{})
}

// stream posts one request like wr for each piece, a window of them at a time.
// before is called ahead of each, if not nil.
func (c *comparer) stream(ctx context.Context, wr verbs.SendWR, before func() error) error {
	flying := 0
	for n := range c.job.count() {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		if flying == window {
			if err := c.Sent(ctx, 1); err != nil {
				return err
			}
			flying--
		}
		off, size := c.job.piece(n)
		wr.ID, wr.SGL, wr.Remote = uint64(n), []verbs.SGE{c.data.SGE(off, size)}, c.peer.Add(uint64(off))
		if err := c.timed(func() error { return c.Post(wr) }); err != nil {
			return err
		}
		flying++
	}
	return c.Sent(ctx, flying)
}

// Credits of send/receive: the peer sends one for each creditStep pieces that
// came, and one at the end unless it falls together with the last of those.
const (
	creditStep     = window / 2
	creditReceives = 4
)

// credits returns the number of credits that the peer sends in all.
func credits(pieces int64) int64 { return (pieces + creditStep - 1) / creditStep }

// creditsLeft returns the number of credits that are still to come when the last piece was sent.
func creditsLeft(pieces int64) int64 {
	used := int64(0)
	if pieces > window {
		used = (pieces - window + creditStep - 1) / creditStep
	}
	return credits(pieces) - used
}

// Names of the device's counters of payload bytes that were copied through memory of the device. The client sends the data, and the other process
// receives it. In the other direction go only small messages that grant credits. Their bytes are no data, so the report leaves out the received
// bytes of the client and the sent bytes of the other process.
const (
	stagedBySender   = "tx_staged_bytes"
	stagedByReceiver = "rx_staged_bytes"
)

// stagedBytes returns the value of the counter name of the device.
func stagedBytes(dev *verbs.Device, name string) uint64 {
	s := dev.Stats()
	return s[name]
}

// usage is the system's account of a process.
type usage struct {
	Known   bool          `json:"known"`   // false where the system keeps no account
	Wakeups int64         `json:"wakeups"` // times a thread slept and was woken (voluntary context switches)
	CPU     time.Duration `json:"cpu_ns"`  // user and system time of all threads
}

// since is the cost between two readings.
func (u usage) since(before usage) usage {
	return usage{Known: u.Known && before.Known, Wakeups: u.Wakeups - before.Wakeups, CPU: u.CPU - before.CPU}
}
