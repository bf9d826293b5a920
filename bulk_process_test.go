//go:build unix

package cinnabar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const memoryHelperEnv = "CINNABAR_TEST_MEMORY_HELPER"

// TestMemoryHelper is a process that exposes memory until its input ends. It prints a bound handle.
func TestMemoryHelper(t *testing.T) {
	if os.Getenv(memoryHelperEnv) == "" {
		t.Skip("runs as a process of other tests only")
	}
	e := bulkEngine(t, nil)
	b := expose(t, e, ReadWrite, noise(memoryHelperSize))
	text, err := b.Bound().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("handle %x\n", text)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

const memoryHelperSize = 8 << 20

// memoryProcess starts a process that exposes noise and returns its memory, as e knows it.
func memoryProcess(t *testing.T, e *Engine) (*exec.Cmd, RemoteBulk) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestMemoryHelper$", "-test.v")
	cmd.Env = append(os.Environ(), memoryHelperEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "handle ")
		if !ok {
			continue
		}
		return cmd, boundMemory(t, e, text)
	}
	t.Fatalf("no handle from the process: %v", lines.Err())
	return nil, RemoteBulk{}
}

func boundMemory(t *testing.T, e *Engine, text string) RemoteBulk {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	var h BulkHandle
	if err := h.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	owner, err := h.Owner(e)
	if err != nil {
		t.Fatal(err)
	}
	return h.On(owner)
}

// stop stops a process and returns when all its threads have stopped.
func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the process is not stopped: %v, %v", status, err)
	}
}

// A process that is stopped ends a transfer with the deadline. The local memory is free then: what the process sends
// when it goes on is not put there.
// parity: G64
func TestTransferWithStoppedProcess(t *testing.T) {
	e := bulkEngine(t, nil)
	cmd, r := memoryProcess(t, e)
	local := alloc(t, e, ReadWrite, memoryHelperSize)
	if _, err := r.Pull(t.Context(), local); err != nil || !bytes.Equal(local.Bytes(), noise(memoryHelperSize)) {
		t.Fatalf("before: %v", err)
	}
	stop(t, cmd)
	for _, do := range []func(context.Context, *Bulk) (int64, error){
		r.Pull, r.waitPull, r.Push,
		func(ctx context.Context, b *Bulk) (int64, error) { return r.PullChunks(ctx, b, 1<<20, 4) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := do(ctx, local)
		cancel()
		wantCode(t, err, CodeTimeout)
	}
	poison := bytes.Repeat([]byte{0xEE}, memoryHelperSize)
	copy(local.Bytes(), poison)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadAt(make([]byte, 100), 0); err != nil { // behind the answers to what was given up
		t.Fatalf("afterwards: %v", err)
	}
	if !bytes.Equal(local.Bytes(), poison) {
		t.Error("the memory was written after the end")
	}
}

// A process that dies ends the transfers with it, by name and soon.
func TestTransferWithKilledProcess(t *testing.T) {
	e := bulkEngine(t, nil)
	cmd, r := memoryProcess(t, e)
	local := alloc(t, e, ReadWrite, memoryHelperSize)
	stop(t, cmd) // so that the transfers are under way when it dies
	ops := []*Pending[int64]{r.StartPull(t.Context(), local), r.StartPush(t.Context(), local), r.StartPull(t.Context(), local.Slice(5, 5))}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		_, err := op.Wait()
		wantCode(t, err, CodeHostUnreach, r.Endpoint().String())
	}
	_, err := r.Pull(t.Context(), local)
	wantCode(t, err, CodeHostUnreach, "pull", r.Endpoint().String())
}
