package xfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// history collects the steps of both sides in the order in which they happen.
type history struct {
	mu    sync.Mutex
	steps []sideStep
}

type sideStep struct {
	server bool
	Step
}

// tracer returns the tracer of one side.
func (h *history) tracer(server bool) func() Tracer {
	return func() Tracer {
		return func(s Step) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.steps = append(h.steps, sideStep{server, s})
		}
	}
}

// side lists the steps of one side but for the completions of writes, which may be
// seen before or after what the peer answers.
func (h *history) side(server bool) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, s := range h.steps {
		if s.server == server && s.Op != OpSent {
			out = append(out, s.String())
		}
	}
	return out
}

// stepsOf are the steps of both sides.
type stepsOf struct{ client, server []string }

// paperSteps are the 13 steps of section 2 of the paper for test-file, of 5 smallest chunks, in chunks of 2.
var paperSteps = stepsOf{
	client: []string{
		"post receive, 1 entries", // 2
		"connect",
		"receive MR", // 4
		"post receive, 1 entries",
		"write 10", // 5: test-file and its NUL
		"receive READY",
		"post receive, 1 entries", // 7
		"read 8192",
		"write 8192",
		"receive READY",
		"post receive, 1 entries", // 9
		"read 8192",
		"write 8192",
		"receive READY",
		"post receive, 1 entries",
		"read 4096",
		"write 4096",
		"receive READY",
		"post receive, 1 entries", // 10
		"write 0",
		"receive DONE",
		"finish", // 12
	},
	server: []string{
		"post receive, 0 entries", // 3
		"connect",
		"send MR", // 4
		"receive immediate 10",
		"open test-file", // 6
		"post receive, 0 entries",
		"send READY",
		"receive immediate 8192",
		"store 8192", // 8
		"post receive, 0 entries",
		"send READY",
		"receive immediate 8192",
		"store 8192", // 9
		"post receive, 0 entries",
		"send READY",
		"receive immediate 4096",
		"store 4096",
		"post receive, 0 entries",
		"send READY",
		"receive immediate 0",
		"commit",
		"send DONE", // 11
		"finish",    // 13
	},
}

// paperStepsWithoutImmediates are those of section 4.1, for a file "f" of one smallest chunk.
var paperStepsWithoutImmediates = stepsOf{
	client: []string{
		"post receive, 1 entries",
		"connect",
		"send hello",
		"receive MR",
		"post receive, 1 entries",
		"write 2",
		"send size",
		"receive READY",
		"post receive, 1 entries",
		"read 4096",
		"write 4096",
		"send size",
		"receive READY",
		"post receive, 1 entries",
		"write 0",
		"send size",
		"receive DONE",
		"finish",
	},
	server: []string{
		"post receive, 1 entries",
		"connect",
		"receive size",
		"post receive, 1 entries",
		"send MR",
		"receive size",
		"open f",
		"post receive, 1 entries",
		"send READY",
		"receive size",
		"store 4096",
		"post receive, 1 entries",
		"send READY",
		"receive size",
		"commit",
		"send DONE",
		"finish",
	},
}

// want compares the steps of both sides.
func (h *history) want(t *testing.T, want stepsOf) {
	t.Helper()
	if d := cmp.Diff(h.side(false), want.client); d != "" {
		t.Errorf("client: %s", d)
	}
	if d := cmp.Diff(h.side(true), want.server); d != "" {
		t.Errorf("server: %s", d)
	}
}

// exchange moves data between two ends of a device in memory.
func exchange(t *testing.T, s Sender, r Receiver, data []byte, slow media) *history {
	t.Helper()
	var h history
	s.Trace, r.Trace = h.tracer(false), h.tracer(true)
	dev := openSlow(rate(slow.wire, minChunk))
	l := must(verbs.Listen(dev, loopback))(t)
	file := &memFile{disk: rate(slow.write, minChunk)}
	r.Open = func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }
	received := make(chan error, 1)
	go func() {
		_, err := r.ServeOne(t.Context(), l)
		received <- err
	}()
	src := sourceOf("test-file", data)
	src.Data = slowSource{src.Data, rate(slow.read, minChunk)}
	_, err := s.Send(t.Context(), dev, l.Addr(), src)
	if err := errors.Join(err, <-received, l.Close(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file.data, data) {
		t.Errorf("%d bytes arrived of %d, or they differ", len(file.data), len(data))
	}
	return &h
}

// The 13 steps of section 2 of the paper, in the order of each side, for a file of two
// and a half chunks: as many READY as in the paper's transcript.
// parity: B02 B03 B05 B06 B07 B08 B11
func TestPaperSteps(t *testing.T) {
	const chunk = 2 * minChunk
	var h *history
	synctest.Test(t, func(t *testing.T) {
		h = exchange(t, Sender{Protocol: Basic, Chunk: chunk}, Receiver{}, noise(5*minChunk), media{read: time.Millisecond, write: time.Millisecond})
	})
	h.want(t, paperSteps)
}

// The form of section 4.1: the client speaks first, each write is followed by
// its size, the server's receives have memory for it.
// parity: B30
func TestPaperStepsWithoutImmediates(t *testing.T) {
	var h history
	s := Sender{Protocol: Basic, Chunk: minChunk, Trace: h.tracer(false)}
	r := Receiver{Trace: h.tracer(true)}
	dev := verbs.NewDevice(noImmediates{memdev.Open(memdev.Config{})})
	l := must(verbs.Listen(dev, loopback))(t)
	file := &memFile{disk: instant}
	r.Open = func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }
	received := make(chan error, 1)
	go func() {
		_, err := r.ServeOne(t.Context(), l)
		received <- err
	}()
	_, err := s.Send(t.Context(), dev, l.Addr(), sourceOf("f", noise(minChunk)))
	if err := errors.Join(err, <-received, l.Close(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	h.want(t, paperStepsWithoutImmediates)
}

// Under random delays of disks and wire, whatever the protocol and the number of
// buffers: no buffer is written while the server still holds it, and each side has
// posted the receive for the answer before it posts what provokes it. That the
// file is right says the same of the data, since the server's file takes it late.
// parity: S17 B34
func TestNoBufferWrittenWhileHeld(t *testing.T) {
	const rounds = 60
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := Sender{Chunk: minChunk, Window: 1 + rng.IntN(6), Protocol: Protocol(1 + rng.IntN(2)), Digest: []Digest{SHA256, NoDigest}[rng.IntN(2)]}
		size := rng.IntN(20 * minChunk)
		t.Run(fmt.Sprintf("%v window %d size %d", s.Protocol, s.Window, size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, res := jittered(t, s, noise(size), seed)
				checkHistory(t, h, res)
			})
		})
	}
}

// jittered is exchange with delays from a seed. One of four is none, so that whatever
// goes on beside it may be the slower.
func jittered(t *testing.T, s Sender, data []byte, seed uint64) (*history, Result) {
	t.Helper()
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 2))
	delay := func(int) {
		mu.Lock()
		d := time.Duration(rng.ExpFloat64() * float64(time.Millisecond))
		if rng.IntN(4) == 0 {
			d = 0
		}
		mu.Unlock()
		wait(d)
	}
	var h history
	s.Trace = h.tracer(false)
	file := &memFile{disk: delay}
	r := Receiver{Trace: h.tracer(true), Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }}
	dev := openSlow(delay)
	l := must(verbs.Listen(dev, loopback))(t)
	received := make(chan error, 1)
	go func() {
		_, err := r.ServeOne(t.Context(), l)
		received <- err
	}()
	src := sourceOf("f", data)
	src.Data = slowSource{src.Data, delay}
	res, err := s.Send(t.Context(), dev, l.Addr(), src)
	if err := errors.Join(err, <-received, l.Close(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file.data, data) {
		t.Error("the file differs: a buffer was written while it was being stored")
	}
	return &h, res
}

// checkHistory checks the rules of flow control.
func checkHistory(t *testing.T, h *history, res Result) {
	t.Helper()
	c := checker{t: t, res: res, held: make([]int, res.Buffers), using: make([]int, res.Buffers)}
	for i, s := range h.steps {
		c.at = i
		c.step(s)
		if t.Failed() {
			return
		}
	}
	if c.stored != int(res.Chunks) || res.Protocol == Fast && res.Digest == SHA256 && c.hashed != 2*c.stored {
		t.Errorf("a history of %d steps with %d chunks stored and %d hashed, of %d", len(h.steps), c.stored, c.hashed, res.Chunks)
	}
}

// checker is where a history has come to.
type checker struct {
	t   *testing.T
	res Result
	at  int // number of the step

	receives       [2]int // posted and not consumed: client, server
	onWay          [2]int // messages to that side, posted and not received
	held           []int  // per buffer of the server, from the client's write on: who has to be through with it
	using          []int  // per buffer of the client: device and digest
	stored, hashed int
}

func (c *checker) errorf(s sideStep, format string, args ...any) {
	c.t.Helper()
	c.t.Errorf("step %d, %v: %s", c.at, s, fmt.Sprintf(format, args...))
}

func (c *checker) step(s sideStep) {
	side, fast := 0, c.res.Protocol == Fast
	if s.server {
		side = 1
	}
	switch s.Op {
	case OpPostReceive:
		c.receives[side]++
	case OpReceive:
		c.onWay[side]--
		if c.receives[side]--; c.receives[side] < 0 {
			c.errorf(s, "without a receive")
		}
	case OpSend:
		c.onWay[1-side]++
		c.provokes(s)
	case OpWrite:
		if !fast { // with immediate data
			c.onWay[1]++
			c.provokes(s)
		}
		c.write(s)
	case OpSent:
		c.using[s.Slot] = max(c.using[s.Slot]-1, 0)
	case OpRead:
		c.read(s)
	case OpOpen: // in the basic protocol the first write was the name
		clear(c.held)
	case OpStore:
		c.stored++
		c.held[s.Slot]--
	case OpHash:
		if c.hashed++; s.server {
			c.held[s.Slot]--
		} else {
			c.using[s.Slot]--
		}
	default: // the others have no rule
	}
}

// users counts who is to be through with a buffer of one side.
func (c *checker) users() int {
	if c.res.Protocol == Fast && c.res.Digest == SHA256 {
		return 2
	}
	return 1
}

// write is a write into a buffer of the server.
func (c *checker) write(s sideStep) {
	if c.held[s.Slot] > 0 {
		c.errorf(s, "the server holds the buffer")
	}
	if s.Bytes > 0 {
		c.held[s.Slot] = c.users()
	}
}

// read is the end of a read into a buffer of the client.
func (c *checker) read(s sideStep) {
	if c.using[s.Slot] > 0 {
		c.errorf(s, "device or digest are not through with the buffer")
	}
	if s.Bytes > 0 {
		c.using[s.Slot] = c.users()
	}
}

// provokes checks that whoever posts a message has receives for all that the
// other side may say before it is asked again.
func (c *checker) provokes(s sideStep) {
	side, need := 0, 1
	if s.server {
		side = 1
	}
	busy := 0 // buffers that chunks are in, or on their way to
	for _, users := range c.held {
		if users > 0 {
			busy++
		}
	}
	switch {
	case s.Message == "DONE": // nothing follows
		need = 0
	case c.res.Protocol == Basic:
	case s.server: // a chunk for each free buffer, END, FAILED
		need = c.res.Buffers - busy + 2
	default: // a credit for each buffer, one for those that are free and not reported, DONE or FAILED
		need = busy + 2
	}
	if need += c.onWay[side]; c.receives[side] < need {
		c.errorf(s, "%d receives are posted for up to %d messages", c.receives[side], need)
	}
}
