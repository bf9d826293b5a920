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
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar"
	"cinnabar/bench/internal/record"
)

// Roles of a process that this program starts from itself.
const (
	roleBusy = "busy" // computes until its standard input ends
	roleIdle = "idle" // measures two connected engines without traffic; a colon and the transport follow
)

// runRole does the work of a process and returns its exit code.
func runRole(role string, in io.Reader, out io.Writer) int {
	var err error
	switch role {
	case roleBusy:
		compute(in)
	case roleIdle + ":" + overTCP:
		err = runIdle(overTCP, idleTime, out)
	case roleIdle + ":" + overSM:
		err = runIdle(overSM, idleTime, out)
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rpc:", err)
		return 1
	}
	return 0
}

// compute keeps one processor busy until in ends.
func compute(in io.Reader) {
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, in)
		ended.Store(true)
	}()
	for !ended.Load() {
	}
}

// busyProcess is a process that computes all the time. It ends with its standard input, which this program's end closes too.
type busyProcess struct {
	cmd *exec.Cmd
	in  io.Closer
}

// startBusy starts a busy process in the session of this one. The end of ctx kills it.
func (s *setting) startBusy(ctx context.Context) (*busyProcess, error) {
	cmd := exec.CommandContext(ctx, s.self)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleBusy, "GOMAXPROCS=1")
	cmd.Stderr = s.log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("busy process: %w", err)
	}
	return &busyProcess{cmd, in}, nil
}

// end ends the process and returns the processor time that it has used.
func (b *busyProcess) end() (time.Duration, error) {
	_ = b.in.Close() // it is still open
	if err := b.cmd.Wait(); err != nil {
		return 0, fmt.Errorf("busy process: %w", err)
	}
	return b.cmd.ProcessState.UserTime() + b.cmd.ProcessState.SystemTime(), nil
}

// Times of the measurement of idle engines.
const (
	trafficTime = 200 * time.Millisecond
	settleTime  = 100 * time.Millisecond // from the last call until the measurement begins
	idleTime    = 3 * time.Second
)

// measureIdle measures and prints the processor time of idle engines over each transport.
func (s *setting) measureIdle(ctx context.Context) error {
	if _, err := processorTime(); err != nil {
		_, err = fmt.Fprintf(s.out, "\n# processor time of idle engines: not measured: %v\n", err)
		return err
	}
	if _, err := fmt.Fprintln(s.out, "\n# two connected engines of one process without traffic"); err != nil {
		return err
	}
	for _, transport := range []string{overTCP, overSM} {
		i, err := s.idleOver(ctx, transport)
		if err != nil {
			return fmt.Errorf("idle engines over %s: %w", transport, err)
		}
		if err := record.Write(s.lines, i); err != nil {
			return err
		}
		s.idle = append(s.idle, i)
		if _, err := fmt.Fprintf(s.out, "%s: %.3f %% of a processor over %.1f s\n", transport, i.Percent, i.Seconds); err != nil {
			return err
		}
	}
	return nil
}

func (s *setting) idleOver(ctx context.Context, transport string) (i record.Idle, err error) {
	cmd := exec.CommandContext(ctx, s.self)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleIdle+":"+transport)
	var log bytes.Buffer
	cmd.Stderr = &log
	text, err := cmd.Output()
	if err != nil {
		return i, fmt.Errorf("%w: %s", err, bytes.TrimSpace(log.Bytes()))
	}
	return i, json.Unmarshal(text, &i)
}

// runIdle opens two engines, makes calls from one to the other for a time, and measures the processor time of this process while nothing happens.
func runIdle(transport string, d time.Duration, out io.Writer) (err error) {
	type message struct{ N uint64 }
	echo := cinnabar.NewRPC[message, message]("bench idle")
	address := transport
	if transport == overTCP {
		address += "://127.0.0.1:0"
	}
	ctx := context.Background()
	server, err := cinnabar.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	client, err := cinnabar.Open(ctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if err := echo.Handle(server, func(_ context.Context, in message) (message, error) { return in, nil }); err != nil {
		return err
	}
	to, err := client.Lookup(server.Addr())
	if err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < trafficTime; {
		if _, err := echo.Call(ctx, to, message{1}); err != nil {
			return err
		}
	}
	runtime.GC() // the garbage of the traffic is no cost of being idle
	<-time.NewTimer(settleTime).C
	used, err := processorTime()
	if err != nil {
		return err
	}
	begin := time.Now()
	<-time.NewTimer(d).C
	after, err := processorTime()
	if err != nil {
		return err
	}
	took := time.Since(begin)
	return json.NewEncoder(out).Encode(record.Idle{
		Transport: transport, Percent: 100 * float64(after-used) / float64(took), Seconds: took.Seconds(),
	})
}
