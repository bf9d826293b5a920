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
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a child that does an order.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *json.Decoder
	log   bytes.Buffer // its standard error, to be read after its end
}

// start starts a process for o on a processor. It ends with ctx.
func (s *setting) start(ctx context.Context, o *order, cpu int) (*process, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, s.program)}
	p.cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL} // a stopped process would stay otherwise
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = json.NewDecoder(out)
	return p, startPinned(p.cmd, cpu)
}

// startPinned starts cmd on one processor. A child has the processors of the thread that forks it.
func startPinned(cmd *exec.Cmd, cpu int) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old, one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return os.NewSyscallError("sched_setaffinity", err)
	}
	defer func() {
		err = errors.Join(err, os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &old)))
	}()
	return cmd.Start()
}

// read reads a line into v. A process that ends instead is an error with the end of its log.
func (p *process) read(v any) error {
	if err := p.lines.Decode(v); err != nil {
		return fmt.Errorf("a process ended early: %w", errors.Join(err, p.end()))
	}
	return nil
}

// say writes v as a line.
func (p *process) say(v any) error { return json.NewEncoder(p.in).Encode(v) }

// end closes the standard input of the process, which ends it, and waits.
func (p *process) end() error {
	_ = p.in.Close() // it may be closed
	_, _ = io.Copy(io.Discard, p.lines.Buffered())
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, firstLines(p.log.Bytes()))
	}
	return nil
}

// firstLines returns the beginning of a log: a panic's text stands there.
func firstLines(b []byte) string {
	const most = 600
	return strings.TrimSpace(string(b[:min(len(b), most)]))
}

// usage is the memory and the descriptors of a process.
type usage struct {
	rss int64
	fds int
}

// usage reads the usage of a process that runs.
func (p *process) usage() (u usage) {
	dir := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid))
	if fds, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
		u.fds = len(fds)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "statm")); err == nil {
		if f := strings.Fields(string(b)); len(f) > 1 {
			pages, _ := strconv.ParseInt(f[1], 10, 64) // 0 is as good as an error
			u.rss = pages * int64(os.Getpagesize())
		}
	}
	return u
}

// watch samples the usage until ctx ends, and returns the greatest values.
func (p *process) watch(ctx context.Context) (peak usage) {
	for ; ctx.Err() == nil; pause(ctx, sampleEvery) {
		u := p.usage()
		peak = usage{max(peak.rss, u.rss), max(peak.fds, u.fds)}
	}
	return peak
}

// settle samples the usage until there are as few descriptors as before, or for a while.
func (p *process) settle(ctx context.Context, before usage) (u usage) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for u = p.usage(); ctx.Err() == nil && u.fds > before.fds; u = p.usage() {
		pause(ctx, sampleEvery)
	}
	return u
}

const (
	sampleEvery = 100 * time.Millisecond
	settleLimit = 2 * time.Second
)
