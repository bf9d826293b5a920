package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar"
)

// role is the work of a process: a server, or clients.
type role struct {
	Serve       bool
	Connections int  // that the server must have room for
	Sample      bool // the server samples each allocation

	Server                string // address
	First, Clients, Hosts int
}

// order is one line to a process, answer the line that it returns.
type order struct {
	Do   string
	For  time.Duration
	File string
}

// Values of order.Do. The first three are for the server, the others for clients.
const (
	doUsage   = "usage"   // collect, and report the memory
	doRest    = "rest"    // report the processor time of a while
	doProfile = "profile" // write a heap profile
	doOpen    = "open"    // open the engines, one call each
	doCall    = "call"    // call for a time
	doAgain   = "again"   // one call each
)

type answer struct {
	Error string        `json:",omitempty"`
	Addr  string        `json:",omitempty"`
	Usage usage         `json:",omitzero"`
	Took  time.Duration `json:",omitempty"`
	N     int           `json:",omitempty"`
	Calls calls         `json:",omitzero"`
}

// usage is the memory of a process in bytes, and its goroutines and descriptors.
type usage struct {
	Resident, Heap, Stack, Other int64
	Goroutines, Files            int64
}

// calls is the result of clients that have called for a time; times are in microseconds.
type calls struct {
	Clients                          int
	PerSecond, P50, P99, Least, Most float64
}

// process is a child.
type process struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	log  bytes.Buffer // its standard error, to be read after its end
	once sync.Once
	err  error // of its end
}

// startProcess starts program in a role. The end of ctx kills the process.
func startProcess(ctx context.Context, program string, r role) (*process, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program)}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+string(text))
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	return p, p.cmd.Start()
}

func (p *process) say(o order) error { return json.NewEncoder(p.in).Encode(o) }

// read reads a line into a. A process that ends instead is an error with the beginning of its log.
func (p *process) read(a *answer) error {
	if err := p.out.Decode(a); err != nil {
		return fmt.Errorf("a process ended early: %w", errors.Join(err, p.end()))
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

func (p *process) hear() (a answer, err error) {
	err = p.read(&a)
	return a, err
}

func (p *process) ask(o order) (answer, error) {
	if err := p.say(o); err != nil {
		return answer{}, fmt.Errorf("a process ended early: %w", errors.Join(err, p.end()))
	}
	return p.hear()
}

// askAll asks one process after the other, so that those of clients do not connect all at once, and adds up their numbers.
func askAll(list []*process, o order) (n int, err error) {
	for _, p := range list {
		a, err := p.ask(o)
		if err != nil {
			return n, err
		}
		n += a.N
	}
	return n, nil
}

// end closes the standard input of the process, which ends it, and waits. The second call returns the result of the first.
func (p *process) end() error {
	p.once.Do(func() {
		_ = p.in.Close() // it may be closed
		if err := p.cmd.Wait(); err != nil {
			const most = 600 // bytes: the text of a panic stands at the beginning of a log
			p.err = fmt.Errorf("a process failed: %w: %s", err, p.log.Bytes()[:min(p.log.Len(), most)])
		}
	})
	return p.err
}

// runRole does the work of a process and returns its exit code.
func runRole(text string, in io.Reader, out io.Writer) int {
	var r role
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		_, err = raiseFiles()
	}
	if err == nil {
		if r.Serve {
			err = serve(r, in, out)
		} else {
			err = (&crowd{role: r}).run(in, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crowd:", err)
		return 1
	}
	return 0
}

// obey answers orders until in ends.
func obey(in io.Reader, out io.Writer, do func(order) (answer, error)) error {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		a, err := do(o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// message is the argument and the result of the call.
type message struct{ A, B uint64 }

var echo = cinnabar.NewRPC[message, message]("crowd echo")

// callLimit bounds one call. Thousands of clients that connect at once wait for each other.
const callLimit = time.Minute

// crowd is the clients of one process.
type crowd struct {
	role
	engines []*cinnabar.Engine
	servers []*cinnabar.Endpoint
}

func (c *crowd) run(in io.Reader, out io.Writer) (err error) {
	defer func() {
		for _, e := range c.engines {
			err = errors.Join(err, e.Close())
		}
	}()
	return obey(in, out, func(o order) (a answer, err error) {
		switch o.Do {
		case doOpen:
			return answer{}, c.open()
		case doCall:
			a.Calls, err = c.call(o.For)
			return a, err
		case doAgain:
			a.N, err = c.again()
			return a, err
		}
		return a, fmt.Errorf("unknown order %q", o.Do)
	})
}

// open opens the engines one after the other, and makes a call over each.
func (c *crowd) open() error {
	for i := range c.Clients {
		e, err := cinnabar.Open(context.Background(), fmt.Sprintf("ofi+tcp://127.0.0.%d", 2+(c.First+i)%c.Hosts), nil)
		if err != nil {
			return fmt.Errorf("client %d: %w", c.First+i, err)
		}
		c.engines = append(c.engines, e)
		server, err := e.Lookup(c.Server)
		if err != nil {
			return fmt.Errorf("client %d: %w", c.First+i, err)
		}
		c.servers = append(c.servers, server)
		if err := callOnce(server, uint64(i)); err != nil {
			return fmt.Errorf("client %d: %w", c.First+i, err)
		}
	}
	return nil
}

// callOnce makes a call and checks the answer.
func callOnce(server *cinnabar.Endpoint, a uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	in := message{a, ^a}
	out, err := echo.Call(ctx, server, in)
	if err == nil && out != in {
		err = fmt.Errorf("the answer is %v, want %v", out, in)
	}
	return err
}

// again makes a call over each connection and returns their number.
func (c *crowd) again() (n int, err error) {
	for i, s := range c.servers {
		if err := callOnce(s, uint64(i)); err != nil {
			return n, fmt.Errorf("idle client %d: %w", c.First+i, err)
		}
		n++
	}
	return n, nil
}

// call calls with all clients at once for a time, one call at a time each.
func (c *crowd) call(d time.Duration) (calls, error) {
	times, errs := make([][]time.Duration, len(c.servers)), make([]error, len(c.servers))
	var wg sync.WaitGroup
	begin := time.Now()
	for i, s := range c.servers {
		wg.Go(func() {
			for now := time.Now(); now.Sub(begin) < d; {
				if _, errs[i] = echo.Call(context.Background(), s, message{A: uint64(i)}); errs[i] != nil {
					return
				}
				end := time.Now()
				times[i] = append(times[i], end.Sub(now))
				now = end
			}
		})
	}
	wg.Wait()
	return summary(times, time.Since(begin)), errors.Join(errs...)
}

// summary adds up the times of the clients' calls, of which there is at least one.
func summary(times [][]time.Duration, took time.Duration) calls {
	r := calls{Clients: len(times)}
	counts := make([]int, len(times))
	for i := range times {
		counts[i] = len(times[i])
	}
	all := slices.Concat(times...)
	if len(all) == 0 {
		return r
	}
	slices.Sort(all)
	at := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))]) / float64(time.Microsecond) }
	r.PerSecond, r.P50, r.P99 = float64(len(all))/took.Seconds(), at(0.5), at(0.99)
	r.Least, r.Most = float64(slices.Min(counts))/took.Seconds(), float64(slices.Max(counts))/took.Seconds()
	return r
}
