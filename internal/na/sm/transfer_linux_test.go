package sm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/internal/testproc"
)

// memoryEnd is an endpoint without messages: what these tests need of one.
func memoryEnd(t testing.TB) *Endpoint {
	t.Helper()
	watch(t)
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e := &Endpoint{cfg: cfg, ident: identity{int32(os.Getpid()), uint8(testEnds.Add(1))}}
	e.cfg.Logger = slog.New(slog.DiscardHandler)
	e.transfers.init()
	t.Cleanup(func() {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.transfers.close()
			e.mem.close()
		}()
		await(t, "the end of transfers and of serving memory", ended)
	})
	return e
}

var testEnds atomic.Int32

// addrOfEnd is how from knows to.
func addrOfEnd(from, to *Endpoint) *Addr {
	return &Addr{ep: from, ident: to.ident, uri: to.ident.uri()}
}

// testOp is an operation that tells of its end.
type testOp struct {
	na.Op
	done chan struct{}
}

func newTestOp() *testOp {
	op := &testOp{done: make(chan struct{})}
	op.Op.Done = op
	return op
}

func (op *testOp) Complete(*na.Op) { close(op.done) }

// wait returns what became of op.
func (op *testOp) wait(t testing.TB) (int64, error) {
	t.Helper()
	await(t, "the end of a transfer", op.done)
	return op.N, op.Err
}

// expose registers mem and returns it as a peer knows it.
func expose(t testing.TB, owner, user *Endpoint, mem []byte, access na.Access) na.RemoteMemory {
	t.Helper()
	m, err := owner.Register(mem, access)
	if err != nil {
		t.Fatal(err)
	}
	r, err := user.ParseHandle(m.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pattern returns n bytes that look random.
func pattern(n int, seed uint64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

func get(t testing.TB, e *Endpoint, a *Addr, frags ...na.Fragment) (int64, error) {
	t.Helper()
	op := newTestOp()
	e.Get(&op.Op, a, frags)
	return op.wait(t)
}

func put(t testing.TB, e *Endpoint, a *Addr, frags ...na.Fragment) (int64, error) {
	t.Helper()
	op := newTestOp()
	e.Put(&op.Op, a, frags)
	return op.wait(t)
}

// needAttach skips a test of what the kernel moves where it moves nothing.
func needAttach(t *testing.T) {
	t.Helper()
	if err := Attach(); err != nil {
		t.Skip(err)
	}
}

// ways runs f with the kernel moving memory, and with the owner doing it.
func ways(t *testing.T, f func(t *testing.T, owner, user *Endpoint, to *Addr)) {
	for name, relayed := range map[string]bool{"attach": false, "relay": true} {
		t.Run(name, func(t *testing.T) {
			if !relayed {
				needAttach(t)
			}
			owner, user := memoryEnd(t), memoryEnd(t)
			to := addrOfEnd(user, owner)
			to.relayed.Store(relayed)
			f(t, owner, user, to)
		})
	}
}

func TestGetPut(t *testing.T) {
	ways(t, func(t *testing.T, owner, user *Endpoint, to *Addr) {
		for _, n := range []int{1, 8, 4095, 64 << 10, inlineBytes, inlineBytes + 1, relayBytes + 5, callBytes + 3} {
			theirs, ours := pattern(n, uint64(n)), make([]byte, n)
			r := expose(t, owner, user, theirs, na.ReadWrite)
			if got, err := get(t, user, to, na.Fragment{Remote: r, Local: ours}); got != int64(n) || err != nil {
				t.Fatalf("get %d bytes: %d, %v", n, got, err)
			}
			if !bytes.Equal(ours, theirs) {
				t.Fatalf("get %d bytes: they differ", n)
			}
			ours = pattern(n, uint64(n)+1)
			if got, err := put(t, user, to, na.Fragment{Remote: r, Local: ours}); got != int64(n) || err != nil {
				t.Fatalf("put %d bytes: %d, %v", n, got, err)
			}
			if !bytes.Equal(ours, theirs) {
				t.Fatalf("put %d bytes: they differ", n)
			}
		}
	})
}

// TestTransferPieces moves ranges of memory in many segments from and to memory in many pieces, more of them than one
// system call takes.
func TestTransferPieces(t *testing.T) {
	ways(t, func(t *testing.T, owner, user *Endpoint, to *Addr) {
		const segs, each = maxSegments, 300
		theirs := pattern(2*segs*each, 1) // every second piece of it is a segment
		if _, err := owner.Register(theirs, na.ReadWrite); err != nil {
			t.Fatal(err)
		}
		var words []uint64
		var whole []byte
		for i := range segs {
			seg := theirs[2*i*each:][:each]
			words = append(words, hostmem.Addr(seg), each)
			whole = append(whole, seg...)
		}
		r, err := user.ParseHandle(rawHandle(segs, segs*each, 3, words...))
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range []int{1 << 20, 7, 1000} {
			off := uint64(each + each/2)
			n := min(4000*piece, segs*each-int(off)-1)
			frags, ours := pieces(r, off, n, piece)
			if got, err := get(t, user, to, frags...); got != int64(n) || err != nil {
				t.Fatalf("pieces of %d: %d, %v", piece, got, err)
			}
			if !bytes.Equal(joinPieces(frags), whole[off:][:n]) {
				t.Fatalf("pieces of %d: they differ", piece)
			}
			if ours[len(ours)-1] != 0 {
				t.Fatal("written behind the local memory")
			}
			if got, err := put(t, user, to, frags...); got != int64(n) || err != nil {
				t.Fatalf("put pieces of %d: %d, %v", piece, got, err)
			}
		}
		for i := range segs {
			if !bytes.Equal(theirs[2*i*each:][:each], whole[i*each:][:each]) {
				t.Fatalf("segment %d changed by being written as it was", i)
			}
		}
	})
}

// pieces cuts n bytes of r at off into fragments whose local memory does not lie together.
func pieces(r na.RemoteMemory, off uint64, n, piece int) (frags []na.Fragment, ours []byte) {
	ours = make([]byte, n+(n+piece-1)/piece)
	for at, rest := 0, ours; at < n; at += piece {
		k := min(piece, n-at)
		frags = append(frags, na.Fragment{Remote: r, Offset: off + uint64(at), Local: rest[:k:k]})
		rest = rest[k+1:]
	}
	return frags, ours
}

func joinPieces(frags []na.Fragment) (b []byte) {
	for _, f := range frags {
		b = append(b, f.Local...)
	}
	return b
}

// TestTransferBeyond4GiB moves 5 GiB in one operation, of which hardly any page exists on one side, and which all go to
// the same memory on the other.
func TestTransferBeyond4GiB(t *testing.T) {
	needAttach(t)
	if os.Getenv("CINNABAR_LARGE") == "" {
		t.Skip("moves 5 GiB, which takes seconds; set CINNABAR_LARGE=1 to run it")
	}
	const size, piece = 5 << 30, 32 << 20
	user := memoryEnd(t)
	to := addrOfEnd(user, user)
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}()
	r := expose(t, user, user, mem, na.ReadWrite)
	for i, at := range []int{0, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, size - 1} { // in a place of their own within the pieces
		mem[at] = byte(i + 1)
	}
	ours := make([]byte, piece)
	var frags []na.Fragment
	for off := uint64(0); off < size; off += piece {
		frags = append(frags, na.Fragment{Remote: r, Offset: off, Local: ours})
	}
	if n, err := get(t, user, to, frags...); n != size || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := get(t, user, to, na.Fragment{Remote: r, Offset: 1<<32 - 1, Local: ours[:2]}); n != 2 || err != nil || ours[0] != 4 || ours[1] != 5 {
		t.Errorf("around 4 GiB: %d, %v, % x", n, err, ours[:2])
	}
	if n, err := put(t, user, to, na.Fragment{Remote: r, Offset: size - 1, Local: []byte{9}}); n != 1 || err != nil || mem[size-1] != 9 {
		t.Errorf("put to the last byte: %d, %v", n, err)
	}
}

// TestTransferRights: what the handle does not allow is refused before anything moves.
func TestTransferRights(t *testing.T) {
	ways(t, func(t *testing.T, owner, user *Endpoint, to *Addr) {
		mem := make([]byte, 64)
		ro, wo := expose(t, owner, user, mem, na.ReadOnly), expose(t, owner, user, mem, na.WriteOnly)
		for _, tc := range []struct {
			name string
			kind na.Kind
			run  func() (int64, error)
		}{
			{"get of what may be read", 0, func() (int64, error) { return get(t, user, to, na.Fragment{Remote: ro, Local: mem[:8:8]}) }},
			{"put to what may be written", 0, func() (int64, error) {
				return put(t, user, to, na.Fragment{Remote: wo, Local: make([]byte, 64)})
			}},
			{"get of what may be written", na.Denied, func() (int64, error) { return get(t, user, to, na.Fragment{Remote: wo, Local: make([]byte, 8)}) }},
			{"put to what may be read", na.Denied, func() (int64, error) { return put(t, user, to, na.Fragment{Remote: ro, Local: make([]byte, 8)}) }},
			{"beyond the end", na.Denied, func() (int64, error) {
				return get(t, user, to, na.Fragment{Remote: ro, Offset: 57, Local: make([]byte, 8)})
			}},
			{"offset that wraps around", na.Denied, func() (int64, error) {
				return get(t, user, to, na.Fragment{Remote: ro, Offset: 1<<64 - 4, Local: make([]byte, 8)})
			}},
			{"foreign memory", na.Invalid, func() (int64, error) { return get(t, user, to, na.Fragment{Local: make([]byte, 8)}) }},
			{"nothing", 0, func() (int64, error) { return get(t, user, to, na.Fragment{Remote: ro, Offset: 64}) }},
		} {
			n, err := tc.run()
			if na.KindOf(err) != tc.kind || tc.kind == 0 && err != nil || tc.kind != 0 && n != 0 {
				t.Errorf("%s: %d, %v; want kind %v", tc.name, n, err, tc.kind)
			}
		}
	})
}

// TestTransferRelayChecksRights: the owner does not take the peer's word for what a handle allows.
func TestTransferRelayChecksRights(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	to.relayed.Store(true)
	mem := make([]byte, 64)
	m, err := owner.Register(mem, na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	forged := m.AppendHandle(nil)
	forged[handleAccess] = byte(na.ReadWrite)
	r, err := user.ParseHandle(forged)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put(t, user, to, na.Fragment{Remote: r, Local: []byte{1}}); na.KindOf(err) != na.Denied || mem[0] != 0 {
		t.Errorf("put to read-only memory: %v", err)
	}
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 1)}); err != nil {
		t.Errorf("get after a refusal: %v", err)
	}
	m.Close()
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 1)}); na.KindOf(err) != na.Denied {
		t.Errorf("get from closed memory: %v", err)
	}
	if _, err := user.ParseHandle(nil); na.KindOf(err) != na.Protocol {
		t.Errorf("empty handle: %v", err)
	}
}

// TestTransferUnmapped: of memory that its owner has unmapped too early, what is still there may be moved, and the error
// tells where it ended. Nobody faults.
func TestTransferUnmapped(t *testing.T) {
	ways(t, func(t *testing.T, owner, user *Endpoint, to *Addr) {
		page := os.Getpagesize()
		mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Munmap(mem); err != nil {
				t.Error(err)
			}
		}()
		mem[page-1] = 7
		if err := unix.Mprotect(mem[page:2*page], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		r := expose(t, owner, user, mem, na.ReadWrite)
		ours := make([]byte, 3*page)
		n, err := get(t, user, to, na.Fragment{Remote: r, Local: ours})
		if na.KindOf(err) != na.Denied {
			t.Errorf("get: %v; want kind %v", err, na.Denied)
		}
		want := fmt.Sprintf("%#x", hostmem.Addr(mem)+uint64(page))
		if !to.relayed.Load() && (n != int64(page) || ours[page-1] != 7 || err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes, %v; want %d, and the address %s", n, err, page, want)
		}
		if _, err := put(t, user, to, na.Fragment{Remote: r, Local: ours}); na.KindOf(err) != na.Denied {
			t.Errorf("put: %v; want kind %v", err, na.Denied)
		}
		if n, err := get(t, user, to, na.Fragment{Remote: r, Local: ours[:page]}); n != int64(page) || err != nil {
			t.Errorf("afterwards: %d, %v", n, err)
		}
	})
}

// TestTransferDeadProcess reaches for the memory of a process that has ended.
func TestTransferDeadProcess(t *testing.T) {
	needAttach(t)
	user := memoryEnd(t)
	gone := deadProcess(t)
	to := &Addr{ep: user, ident: identity{gone, 0}, uri: identity{gone, 0}.uri()}
	r, err := user.ParseHandle(rawHandle(1, 8, 3, 0x1000, 8))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); na.KindOf(err) != na.Unreachable {
		t.Errorf("%v; want kind %v", err, na.Unreachable)
	}
}

// deadProcess returns the number of a process that has ended.
func deadProcess(t *testing.T) int32 {
	t.Helper()
	p := testproc.Run(t, testproc.Command{Args: []string{"-test.run=^$"}, Limit: testLimit})
	if err := p.Wait(); err != nil {
		t.Fatalf("a process that runs no test: %v", err)
	}
	return int32(p.Pid())
}

// TestTransferCancel cancels transfers at any moment: each ends once, as canceled or complete.
func TestTransferCancel(t *testing.T) {
	ways(t, func(t *testing.T, owner, user *Endpoint, to *Addr) {
		const n = 1 << 20
		theirs := pattern(n, 3)
		r := expose(t, owner, user, theirs, na.ReadOnly)
		ops := make([]*testOp, 16)
		for i := range ops {
			ops[i] = newTestOp()
			user.Get(&ops[i].Op, to, []na.Fragment{{Remote: r, Local: make([]byte, n)}})
		}
		for i := len(ops) - 1; i >= 0; i -= 2 {
			user.transfers.cancel(&ops[i].Op)
		}
		for i, op := range ops {
			got, err := op.wait(t)
			if err != nil && (na.KindOf(err) != na.Canceled || i%2 == 0) || err == nil && got != n {
				t.Errorf("operation %d: %d, %v", i, got, err)
			}
		}
		if user.transfers.cancel(&ops[0].Op) {
			t.Error("a complete operation was cancelled")
		}
	})
}

// TestTransferCancelStalled cancels a transfer whose owner does not answer.
func TestTransferCancelStalled(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	to.relayed.Store(true)
	mem := make([]byte, 64)
	r := expose(t, owner, user, mem, na.ReadOnly)
	list := owner.mem.at(hostmem.Addr(mem), 64)
	if len(list) != 1 {
		t.Fatalf("the memory is registered %d times", len(list))
	}
	m := list[0]
	func() {
		m.mu.Lock() // the owner's relay waits for it
		defer m.mu.Unlock()
		op := newTestOp()
		user.Get(&op.Op, to, []na.Fragment{{Remote: r, Local: make([]byte, 64)}})
		if !user.transfers.cancel(&op.Op) {
			t.Error("a transfer under way is not found")
		}
		if _, err := op.wait(t); na.KindOf(err) != na.Canceled {
			t.Errorf("%v; want kind %v", err, na.Canceled)
		}
	}()
	if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 64)}); n != 64 || err != nil {
		t.Errorf("after that: %d, %v", n, err)
	}
}

// TestTransferClose: the end of an endpoint ends its transfers, and others are refused.
func TestTransferClose(t *testing.T) {
	ways(t, func(t *testing.T, owner, user *Endpoint, to *Addr) {
		const n = 1 << 20
		r := expose(t, owner, user, make([]byte, n), na.ReadOnly)
		ops := make([]*testOp, 8)
		for i := range ops {
			ops[i] = newTestOp()
			user.Get(&ops[i].Op, to, []na.Fragment{{Remote: r, Local: make([]byte, n)}})
		}
		user.transfers.close()
		for i, op := range ops {
			if got, err := op.wait(t); err != nil && na.KindOf(err) != na.Closed || err == nil && got != n {
				t.Errorf("operation %d: %d, %v", i, got, err)
			}
		}
		for _, size := range []int{1, n} {
			if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, size)}); na.KindOf(err) != na.Closed {
				t.Errorf("%d bytes after the end: %v; want kind %v", size, err, na.Closed)
			}
		}
		owner.mem.close()
		if _, err := owner.Register(make([]byte, 8), na.ReadOnly); na.KindOf(err) != na.Closed {
			t.Errorf("register after the end: %v; want kind %v", err, na.Closed)
		}
	})
}

// TestRelayOwnerCloses: a transfer from an owner that ends is an error in time.
func TestRelayOwnerCloses(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	to.relayed.Store(true)
	r := expose(t, owner, user, make([]byte, 8), na.ReadOnly)
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); err != nil {
		t.Fatal(err)
	}
	owner.mem.close()
	for range 2 { // over the old connection, and over none
		if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); na.KindOf(err) != na.Unreachable {
			t.Errorf("%v; want kind %v", err, na.Unreachable)
		}
	}
}

func TestRegisterRefuses(t *testing.T) {
	e := memoryEnd(t)
	for _, tc := range []struct {
		mem    []byte
		access na.Access
	}{{nil, na.ReadOnly}, {make([]byte, 1), 0}, {make([]byte, 1), 4}} {
		if _, err := e.Register(tc.mem, tc.access); na.KindOf(err) != na.Invalid {
			t.Errorf("%d bytes, access %d: %v", len(tc.mem), tc.access, err)
		}
	}
}

// TestMemoryIsPinned: memory of the Go heap that only peers know stays where and what it is while it is registered.
func TestMemoryIsPinned(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	var remotes []na.RemoteMemory
	for i := range 200 {
		remotes = append(remotes, expose(t, owner, user, pattern(1000, uint64(i)), na.ReadOnly))
	}
	for range 3 {
		runtime.GC()
		for range 1000 {
			_ = pattern(100, 0)
		}
	}
	for i, r := range remotes {
		ours := make([]byte, 1000)
		if _, err := get(t, user, to, na.Fragment{Remote: r, Local: ours}); err != nil || !bytes.Equal(ours, pattern(1000, uint64(i))) {
			t.Fatalf("memory %d changed: %v", i, err)
		}
	}
}

// parity: D17
func TestAttachError(t *testing.T) {
	for _, tc := range []struct {
		scope, want string
		err         error
	}{
		{"1", "PR_SET_PTRACER_ANY", unix.EPERM}, {"2", "CAP_SYS_PTRACE", unix.EPERM}, {"3", "next boot", unix.EPERM},
		{"0", "same user", unix.EPERM}, {"", "same user", unix.EPERM}, {"", "seccomp", unix.ENOSYS},
	} {
		e := &AttachError{PID: 4711, Scope: tc.scope, Err: tc.err}
		if s := e.Error(); !strings.Contains(s, tc.want) || !strings.Contains(s, "4711") || !errors.Is(e, tc.err) {
			t.Errorf("scope %q: %s", tc.scope, s)
		}
	}
}

func TestProbe(t *testing.T) {
	needAttach(t)
	if err := probe(int32(os.Getpid())); err != nil {
		t.Errorf("this process: %v", err)
	}
	if err := probe(deadProcess(t)); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a dead process: %v", err)
	}
}
