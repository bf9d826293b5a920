//go:build unix

package cinnabar

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/testproc"
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
func memoryProcess(t *testing.T, e *Engine) (*testproc.Process, RemoteBulk) {
	t.Helper()
	p := testproc.Start(t, testproc.Command{Args: []string{"-test.run=^TestMemoryHelper$", "-test.v"}, Env: []string{memoryHelperEnv + "=1"}})
	return p, boundMemory(t, e, p.Stdout.Expect("^handle ([0-9a-f]+)$")[1])
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

// A process that is stopped ends a transfer with the deadline. The local memory is free then: what the process sends
// when it goes on is not put there.
// parity: G64
func TestTransferWithStoppedProcess(t *testing.T) {
	e := bulkEngine(t, nil)
	p, r := memoryProcess(t, e)
	local := alloc(t, e, ReadWrite, memoryHelperSize)
	if _, err := r.Pull(t.Context(), local); err != nil || !bytes.Equal(local.Bytes(), noise(memoryHelperSize)) {
		t.Fatalf("before: %v", err)
	}
	p.Suspend()
	for _, do := range []func(context.Context, *Bulk) (int64, error){
		r.Pull, r.waitPull, r.Push,
		func(ctx context.Context, b *Bulk) (int64, error) { return r.PullChunks(ctx, b, 1<<20, 4) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := do(ctx, local)
		cancel()
		wantCode(t, err, codes.Timeout)
	}
	poison := bytes.Repeat([]byte{0xEE}, memoryHelperSize)
	copy(local.Bytes(), poison)
	p.Resume()
	if _, err := r.ReadAt(t.Context(), make([]byte, 100), 0); err != nil { // behind the answers to what was given up
		t.Fatalf("afterwards: %v", err)
	}
	if !bytes.Equal(local.Bytes(), poison) {
		t.Error("the memory was written after the end")
	}
}

// A process that dies ends the transfers with it, by name and soon.
func TestTransferWithKilledProcess(t *testing.T) {
	e := bulkEngine(t, nil)
	p, r := memoryProcess(t, e)
	local := alloc(t, e, ReadWrite, memoryHelperSize)
	p.Suspend() // so that the transfers are under way when it dies
	ops := []*Pending[int64]{r.StartPull(t.Context(), local), r.StartPush(t.Context(), local), r.StartPull(t.Context(), local.Slice(5, 5))}
	p.Kill()
	for _, op := range ops {
		_, err := op.Wait()
		wantCode(t, err, codes.HostUnreach, r.Endpoint().String())
	}
	_, err := r.Pull(t.Context(), local)
	wantCode(t, err, codes.HostUnreach, "pull", r.Endpoint().String())
}
