package cinnabar

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cinnabar/codes"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/na/sm"
	"cinnabar/internal/progress"
	"cinnabar/internal/testproc"
)

// TestSharedMemoryWithoutAttach has a process that the kernel does not let reach this one's memory pull and push it all
// the same: this process copies for it. What both have allocated for transfers, it maps.
// parity: H126 D17
func TestSharedMemoryWithoutAttach(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil { // against a process of the same user without rights
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }()
	e, err := Listen(t.Context(), "na+sm", nil)
	opened(t, e, err)
	heap := bytes.Repeat([]byte("heap"), 100_000)
	inHeap, err := e.Expose(ReadWrite, heap)
	must(t, err)
	defer inHeap.Close()
	alloc, err := e.Alloc(ReadWrite, int64(len(heap)))
	must(t, err)
	defer alloc.Close()
	copy(alloc.Bytes(), bytes.Repeat([]byte("pool"), 100_000))
	give := NewRPC[struct{}, lentOut]("give")
	must(t, give.Handle(e, func(context.Context, struct{}) (lentOut, error) {
		return lentOut{inHeap.Handle(), alloc.Handle()}, nil
	}))

	p := confined(t, "confined", e.Addr())
	for range 2 {
		got := p.Stdout.Line()
		if strings.HasPrefix(got, "not refused") {
			p.Kill()
			t.Skip("the kernel lets a process without CAP_SYS_PTRACE reach one that is not dumpable")
		}
		if want := fmt.Sprintf("refused, pulled %d", len(heap)); got != want {
			t.Fatalf("the other process says %q, want %q", got, want)
		}
	}
	p.Kill()
	if !bytes.Equal(heap, bytes.Repeat([]byte("HEAP"), 100_000)) || !bytes.Equal(alloc.Bytes(), bytes.Repeat([]byte("POOL"), 100_000)) {
		t.Errorf("what it pushed has not arrived: %.8q, %.8q", heap, alloc.Bytes())
	}
}

// TestSharedMemoryName: a name is looked up before there is a server of that name, and leads to its successor, too.
//
// parity: D06 D20
func TestSharedMemoryName(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	client, err := Open(t.Context(), "na+sm", nil)
	client = opened(t, client, err)
	addr := fmt.Sprintf("na+sm://cinnabar-name-%d", os.Getpid())
	ep := find(t, client, addr)
	_, err = add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.HostUnreach, addr)
	for range 2 {
		server, err := Listen(t.Context(), addr, nil)
		server = opened(t, server, err)
		must(t, add.Handle(server, handleAdd))
		callAdd(t, ep)
		into := make([]byte, 1<<20)
		if n, err := remoteOf(t, server, ep).Pull(patient(t), exposed(t, client, into)); err != nil || n != 1<<20 || into[0] != 7 {
			t.Errorf("%d bytes, %v", n, err)
		}
		gone := ep.named.Done()
		must(t, server.Close())
		soon(t, "the end of the connection", gone)
	}
}

// TestSharedMemoryConfig: settings arrive where they are used, and what na+sm does not have is refused.
func TestSharedMemoryConfig(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	cfg := &Config{Logger: log, waits: progress.New(progress.Economy), MaxRequest: 4096, DialTimeout: 6, SendTimeout: 9}
	got, err := cfg.sm()
	if want := (sm.Config{Logger: got.Logger, Progress: cfg.waits, ConnectTimeout: 6, SendTimeout: 9}); err != nil || got != want || got.Logger.Handler() != log.Handler() {
		t.Errorf("the transport is told %+v, %v; want %+v", got, err, want)
	}
	for _, cfg := range []*Config{{MaxRequest: 8192}, {MaxResponse: 1024}} {
		_, err := Listen(t.Context(), "na+sm", cfg)
		wantCode(t, err, codes.InvalidArg, "4096")
	}
}

type lentOut struct{ Heap, Alloc BulkHandle }

// confined is spawn of a process without CAP_SYS_PTRACE, which root has otherwise.
func confined(t *testing.T, role, arg string) (p *testproc.Process) {
	t.Helper()
	started := make(chan struct{})
	go func() {
		defer close(started)
		runtime.LockOSThread()                                             // and never unlocked: the thread ends with its rights
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0) // only who has rights can drop them
		p = spawn(t, role, arg)
	}()
	<-started
	if p == nil {
		t.FailNow()
	}
	return p
}

func init() { peers["confined"] = peerConfined }

// peerConfined pulls and pushes the memory of the engine at the address args[0].
func peerConfined(args []string) error {
	pid, _, _ := strings.Cut(strings.TrimPrefix(args[0], "na+sm://"), "-")
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	var one [1]byte
	_, refused := unix.ProcessVMReadv(n, []unix.Iovec{{Base: &one[0], Len: 1}}, []unix.RemoteIovec{{Len: 1}}, 0)
	e, err := Open(context.Background(), "na+sm", nil)
	if err != nil {
		return err
	}
	ctx := context.Background()
	ep, err := e.Lookup(args[0])
	if err != nil {
		return err
	}
	lent, err := NewRPC[struct{}, lentOut]("give").Call(ctx, ep, struct{}{})
	if err != nil {
		return err
	}
	for _, h := range []BulkHandle{lent.Heap, lent.Alloc} {
		local, err := e.Alloc(ReadWrite, h.Len())
		if err != nil {
			return err
		}
		pulled, err := h.On(ep).Pull(ctx, local)
		if err != nil {
			return err
		}
		copy(local.Bytes(), bytes.ToUpper(local.Bytes()))
		if _, err := h.On(ep).Push(ctx, local); err != nil {
			return err
		}
		answer := "refused"
		if !errors.Is(refused, unix.EPERM) && !errors.Is(refused, unix.ENOSYS) { // the latter from filters of system calls
			answer = "not refused"
		}
		fmt.Printf("%s, pulled %d\n", answer, pulled)
	}
	<-testproc.InputClosed()
	return errors.Join(e.Close(), os.Stdout.Close())
}

// TestSharedMemoryDescriptors makes descriptors of memory over na+sm, and compares them with those that a program in C has
// made of such memory.
func TestSharedMemoryDescriptors(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	e, err := Listen(t.Context(), "na+sm", &Config{NoEager: true})
	opened(t, e, err)
	segs := [][]byte{make([]byte, 4096), make([]byte, 100), make([]byte, 1)}
	ours := map[uint64]uint64{ // words that differ from process to process
		0x7e0000000000: hostmem.Addr(segs[0]), 0x7e0000002000: hostmem.Addr(segs[1]), 0x7e0000010001: hostmem.Addr(segs[2]),
		1<<32 | 25954: binary.LittleEndian.Uint64(e.net.AppendAddr(nil, e.net.Addr())),
	}
	raw, err := os.ReadFile("internal/hg/testdata/descriptors_sm.txt")
	must(t, err)
	seen := 0
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if words[0] != "bulk" {
			continue
		}
		seen++
		want, err := hex.DecodeString(words[4])
		must(t, err)
		for at := 0; at+8 <= len(want); at += 8 {
			if w, ok := ours[binary.LittleEndian.Uint64(want[at:])]; ok {
				binary.LittleEndian.PutUint64(want[at:], w)
			}
		}
		mode := map[string]Mode{"1": ReadOnly, "2": WriteOnly, "3": ReadWrite}[words[2]]
		b, err := e.Expose(mode, segs[:words[1][0]-'0']...)
		must(t, err)
		d := b.mem.core.Desc()
		if words[3] == "bound" {
			d = b.mem.core.Bind()
		}
		got := d.Append(nil)
		for i := range d.Segments() { // of the list in front of the handle C uses the lengths only, and this package tells no more
			clear(want[16+16*i:][:8])
			clear(got[16+16*i:][:8])
		}
		if diff := cmp.Diff(hex.EncodeToString(want), hex.EncodeToString(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", strings.Join(words[:4], " "), diff)
		}
		must(t, b.Close())
	}
	if seen != 12 {
		t.Errorf("%d descriptors were compared, want 12", seen)
	}
}
