package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/hostmem"
)

func probePtraceScope(_ context.Context, x *exam) {
	const file, remedy = "kernel.yama.ptrace_scope is ", "sysctl kernel.yama.ptrace_scope=0, and the same in /etc/sysctl.d"
	mask, _ := field(x.word("proc/self/status"), "CapEff")
	switch scope := x.word("proc/sys/kernel/yama/ptrace_scope"); scope {
	case "":
		x.ok("Yama does not limit access between processes")
	case "0":
		x.ok("%s0, so processes of one user may access each other's memory", file)
	case "1":
		x.add(levelNote, "processes in C on na+sm cannot move bulk memory from or to others of this user", file+"1: a process must permit access, as this module does and Mercury in C does not", remedy)
	case "2":
		x.add(levelWarning, "processes without CAP_SYS_PTRACE cannot access each other's memory", file+"2; this process has the capabilities "+mask, remedy+"; peers in Go copy instead, which takes longer")
	case "3":
		x.add(levelWarning, "no process can access another's memory until the next boot", file+"3", "kernel.yama.ptrace_scope=0 in /etc/sysctl.d, and boot; peers in Go copy instead, which takes longer")
	default:
		x.notTried("%s%q, which has no known meaning", file, scope)
	}
}

// The peer of the probe attach is a child process: the executable with a hidden command. It has a buffer of attachSize bytes, and both
// sides access the memory of the other side:
//
//	probe                                     child
//	 | <---------- address of its buffer ------- |  attachReady
//	 |   reads and writes the child's buffer     |
//	 | ---------------------- attachOrder -----> |  once without and once with permission of the probe's process
//	 | <--------- result of its accesses ------- |  attachResult
//
// The child ends when its input ends, which is when the probe ends.
const attachSize = 64 << 10

// attachReady has the address of the child's buffer.
type attachReady struct{ At uint64 }

// attachOrder has the process of the probe, and the address of its buffer.
type attachOrder struct {
	PID int
	At  uint64
}

// attachResult is the result of the child's accesses to the probe's buffer.
type attachResult struct {
	Err     string // "": both accesses succeeded
	Denied  bool   // EPERM or ENOSYS
	Missing bool   // ENOSYS
	Written bool   // the probe's bytes are in the child's buffer
}

// The byte with which each side fills its own buffer first, and then writes into the buffer of the other side.
const (
	probeByte = 0x5a
	childByte = 0xa5
)

// attachTimeout bounds the life of a child.
const attachTimeout = time.Minute

// newPeer returns the hidden command of the child.
func newPeer(s cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use: "doctor-peer", Hidden: true, Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return servePeer(s.In, s.Out) },
	}
}

// errStarted is the error of the hidden command when a user starts it.
var errStarted = errors.New("this command is started by others: the command doctor starts it for its probe attach")

func servePeer(in io.Reader, out io.Writer) error {
	if !cli.IsPipe(in) {
		return errStarted
	}
	end := time.AfterFunc(attachTimeout, func() { // the input is a pipe of the probe, which may hang
		if f, ok := in.(io.Closer); ok {
			cli.Shut(f)
		}
	})
	defer end.Stop()
	b, err := hostmem.Map(attachSize)
	if err != nil {
		return err
	}
	fill(b, childByte)
	orders := json.NewDecoder(bufio.NewReader(in))
	results := json.NewEncoder(out)
	err = results.Encode(attachReady{hostmem.Addr(b)})
	for err == nil {
		var o attachOrder
		if err = orders.Decode(&o); err == nil {
			err = results.Encode(access(o.PID, o.At, b))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, hostmem.Unmap(b))
}

// fill sets all bytes of b.
func fill(b []byte, value byte) { copy(b, bytes.Repeat([]byte{value}, len(b))) }

// access reads the buffer of the probe's process and writes childByte into it.
func access(pid int, at uint64, own []byte) attachResult {
	r := attachResult{Written: bytes.Count(own, []byte{probeByte}) == len(own)}
	b := make([]byte, attachSize)
	err := readRemote(pid, b, at)
	if err == nil && bytes.Count(b, []byte{probeByte}) != len(b) {
		err = errors.New("process_vm_readv returned other bytes than those of the process")
	}
	if err == nil {
		fill(b, childByte)
		err = writeRemote(pid, b, at)
	}
	if err != nil {
		r.Err, r.Denied, r.Missing = err.Error(), isDenied(err), errors.Is(err, syscall.ENOSYS)
	}
	return r
}

// isDenied reports whether the kernel forbids an access. Filters of system calls return ENOSYS or EPERM.
func isDenied(err error) bool { return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) }

// isNoSpace reports whether a file system has no room.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// attached is the child process of the probe, and the connection to it.
type attached struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	orders  *json.Encoder
	results *json.Decoder
	stderr  limitedBuffer
	child   uint64 // the address of the child's buffer
}

// limitedBuffer keeps the first bytes of the child's standard error.
type limitedBuffer struct{ b bytes.Buffer }

func (l *limitedBuffer) Write(b []byte) (int, error) {
	l.b.Write(b[:min(len(b), maxText-min(l.b.Len(), maxText))])
	return len(b), nil
}

// startPeer starts the child and waits until it is ready. The end of ctx kills it.
func startPeer(ctx context.Context) (*attached, error) {
	path, err := executable()
	if err != nil {
		return nil, err
	}
	a := &attached{cmd: exec.CommandContext(ctx, path, "doctor-peer")}
	a.cmd.Stderr = &a.stderr
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.cmd.WaitDelay = grace / 2
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	a.orders, a.results = json.NewEncoder(a.stdin), json.NewDecoder(io.LimitReader(stdout, maxFile))
	var r attachReady
	if err := a.results.Decode(&r); err != nil {
		a.stop()
		return nil, fmt.Errorf("the child process did not start its work: %w; it printed %q", err, a.stderr.b.String())
	}
	a.child = r.At
	return a, nil
}

// stop ends the child. Its exit status does not matter, because its results have arrived.
func (a *attached) stop() {
	cli.Shut(a.stdin)
	_ = a.cmd.Wait()
}

// order makes the child access the buffer b of this process.
func (a *attached) order(b []byte) (attachResult, error) {
	fill(b, probeByte)
	var r attachResult
	if err := a.orders.Encode(attachOrder{os.Getpid(), hostmem.Addr(b)}); err != nil {
		return r, err
	}
	err := a.results.Decode(&r)
	if err == nil && r.Err == "" && hostmem.Addr(b) != 0 && bytes.Count(b, []byte{childByte}) != len(b) {
		r.Err = "process_vm_writev wrote other bytes than those of the process"
	}
	return r, err
}

func probeAttach(ctx context.Context, x *exam) {
	a, err := startPeer(ctx)
	if err != nil {
		x.notTried("no child process: %s", cli.OneLine(err))
		return
	}
	defer a.stop()
	b, err := hostmem.Map(attachSize)
	if err != nil {
		x.notTried("%s", cli.OneLine(err))
		return
	}
	defer func() { _ = hostmem.Unmap(b) }() // nothing uses it any more
	down := a.reach(b)
	permitAttach(false)
	plain, err := a.order(b)
	var permitted attachResult
	if err == nil {
		permitAttach(true)
		permitted, err = a.order(b)
		permitAttach(false)
	}
	if err != nil {
		x.notTried("the child process ended: %s", cli.OneLine(err))
		return
	}
	x.judge(down, plain, permitted)
}

// reach reads and writes the memory of the child.
func (a *attached) reach(b []byte) error {
	if err := readRemote(a.cmd.Process.Pid, b, a.child); err != nil {
		return err
	}
	if bytes.Count(b, []byte{childByte}) != len(b) {
		return errors.New("process_vm_readv returned other bytes than those of the process")
	}
	fill(b, probeByte)
	return writeRemote(a.cmd.Process.Pid, b, a.child)
}

// judge adds the finding about access to the child's memory, about the child's access without permission, and with it.
func (x *exam) judge(down error, plain, permitted attachResult) {
	const result = "; bulk transfers over na+sm between peers in Go are copied instead, which takes longer, and those with peers in C fail"
	const same = "run both processes as one user, in one user namespace and with the same capabilities, or give them CAP_SYS_PTRACE (--cap-add SYS_PTRACE for a container)"
	switch {
	case down != nil && !isDenied(down):
		x.add(levelFault, "copying memory between processes fails", cli.OneLine(down), "report the kernel's version; use ofi+tcp in place of na+sm")
	case permitted.Missing || errors.Is(down, syscall.ENOSYS):
		x.add(levelWarning, "no process may access the memory of others"+result, "process_vm_readv is unknown: a filter of system calls hides it, or the kernel lacks CONFIG_CROSS_MEMORY_ATTACH",
			"let process_vm_readv and process_vm_writev through in the container's seccomp profile")
	case down != nil:
		x.add(levelWarning, "this process may not access the memory of its child"+result, cli.OneLine(down)+x.scopeText(), same)
	case permitted.Err != "" && !permitted.Denied:
		x.add(levelFault, "copying memory between processes fails", permitted.Err, "report the kernel's version; use ofi+tcp in place of na+sm")
	case permitted.Err != "":
		x.add(levelWarning, "another process of this user may not access the memory of this one"+result, permitted.Err+x.scopeText(),
			"start the process without a change of its user (setuid makes it undumpable), or "+same)
	case !permitted.Written:
		x.add(levelFault, "copying memory between processes fails", "process_vm_writev wrote other bytes than those of the process", "report the kernel's version; use ofi+tcp in place of na+sm")
	case plain.Err != "":
		x.add(levelNote, "a process in C may access the memory of another one only with that one's permission", plain.Err+x.scopeText(), "sysctl kernel.yama.ptrace_scope=0, if processes in C use na+sm")
	default:
		x.ok("%s were read and written in both directions between two processes", cli.SizeText(attachSize))
	}
}

// scopeText is the setting of Yama for a cause, or "" without Yama.
func (x *exam) scopeText() string {
	if scope := x.word("proc/sys/kernel/yama/ptrace_scope"); scope != "" {
		return "; kernel.yama.ptrace_scope is " + strings.ToValidUTF8(scope, "?")
	}
	return ""
}
