package sm

import (
	"bytes"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// allocated returns memory of the owner that peers can map.
func allocated(t testing.TB, e *Endpoint, size int) (mem []byte, free func()) {
	t.Helper()
	mem, release, err := e.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	freed := false
	free = func() {
		if freed {
			return
		}
		freed = true
		if err := release(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(free)
	return mem, free
}

// until yields until cond holds.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(testLimit); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v\n%s", what, testLimit, traces())
		}
	}
}

// open makes sure that the arena of r is mapped.
func (e *Endpoint) see(t testing.TB, to *Addr, r na.RemoteMemory) *window {
	t.Helper()
	theirs, ok := r.(*remote)
	if !ok || theirs.arena == 0 {
		t.Fatalf("%+v is not in an arena", r)
	}
	var w *window
	until(t, "window", func() bool {
		w = e.transfers.windows.use(to.ident, theirs.arena)
		return w != nil
	})
	e.transfers.windows.release(w)
	return w
}

func TestWindow(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	mem, free := allocated(t, owner, 3<<20)
	copy(mem, pattern(len(mem), 1))
	part := mem[1<<20+5:][:1<<20]
	r := expose(t, owner, user, part, na.ReadWrite)
	ours := make([]byte, len(part))
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: ours}); err != nil || !bytes.Equal(ours, part) { // by the kernel
		t.Fatalf("before it is mapped: %v", err)
	}
	w := user.see(t, to, r)
	if &w.mem[0] == &mem[0] || !bytes.Equal(w.mem, mem) {
		t.Error("the window is not another mapping of the arena")
	}
	for _, n := range []int{1, inlineMapped, inlineMapped + 1, len(part)} {
		clear(ours)
		if got, err := get(t, user, to, na.Fragment{Remote: r, Local: ours[:n]}); err != nil || got != int64(n) || !bytes.Equal(ours[:n], part[:n]) {
			t.Errorf("get %d bytes: %d, %v", n, got, err)
		}
		for i := range n {
			ours[i] = byte(i * n)
		}
		if got, err := put(t, user, to, na.Fragment{Remote: r, Local: ours[:n]}); err != nil || got != int64(n) || !bytes.Equal(ours[:n], part[:n]) {
			t.Errorf("put %d bytes: %d, %v", n, got, err)
		}
	}
	free()
	until(t, "end of the window", func() bool {
		user.transfers.windows.mu.Lock()
		defer user.transfers.windows.mu.Unlock()
		return w.mem == nil
	})
}

// TestWindowPieces moves pieces of several segments through a window.
func TestWindowPieces(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	mem, _ := allocated(t, owner, 1<<20)
	copy(mem, pattern(len(mem), 2))
	one := expose(t, owner, user, mem, na.ReadWrite)
	user.see(t, to, one)
	id := owner.mem.arenas.of([][]byte{mem})
	raw := rawHandle(3, 300, 3, hostmem.Addr(mem), 100, hostmem.Addr(mem)+5000, 100, hostmem.Addr(mem)+200, 100)
	raw = append(append(raw[:handleAccess:handleAccess], appendHandle(nil, []segment{{}}, na.ReadWrite, id)[handleAccess:handleHead]...), raw[handleHead:]...)
	r, err := user.ParseHandle(raw)
	if err != nil {
		t.Fatal(err)
	}
	frags, _ := pieces(r, 50, 200, 7)
	if n, err := get(t, user, to, frags...); n != 200 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	want := bytes.Join([][]byte{mem[50:100], mem[5000:5100], mem[200:250]}, nil)
	if !bytes.Equal(joinPieces(frags), want) {
		t.Error("they differ")
	}
}

// TestWindowForged: a handle that names an arena gives no memory outside it, and one that names none that there is
// goes by the kernel.
func TestWindowForged(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	mem, _ := allocated(t, owner, 4096)
	other := pattern(100, 3)
	if _, err := owner.Register(other, na.ReadOnly); err != nil {
		t.Fatal(err)
	}
	r := expose(t, owner, user, mem, na.ReadWrite)
	user.see(t, to, r)
	id := owner.mem.arenas.of([][]byte{mem})
	outside, err := user.ParseHandle(appendHandle(nil, []segment{{hostmem.Addr(mem) + 4095, 2}}, na.ReadOnly, id))
	if err != nil {
		t.Fatal(err)
	}
	w := user.transfers.windows.use(to.ident, id)
	beyond := &transfer{op: new(na.Op), to: to, at: cursor{frags: []na.Fragment{{Remote: outside, Local: make([]byte, 2)}}}, total: 2}
	if err := beyond.runMapped(w); na.KindOf(err) != na.Denied {
		t.Errorf("beyond the end of the arena: %v", err)
	}
	user.transfers.windows.release(w)
	unknown, err := user.ParseHandle(appendHandle(nil, []segment{{hostmem.Addr(other), 100}}, na.ReadOnly, id^1))
	if err != nil {
		t.Fatal(err)
	}
	ours := make([]byte, 100)
	for range 3 {
		if _, err := get(t, user, to, na.Fragment{Remote: unknown, Local: ours}); err != nil || !bytes.Equal(ours, other) {
			t.Errorf("of an arena that is not there: %v", err)
		}
	}
}

// TestWindowOwnerGone: with the owner its windows go.
func TestWindowOwnerGone(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	mem, _ := allocated(t, owner, 4096)
	w := user.see(t, to, expose(t, owner, user, mem, na.ReadWrite))
	owner.mem.close()
	until(t, "end of the window", func() bool {
		user.transfers.windows.mu.Lock()
		defer user.transfers.windows.mu.Unlock()
		return w.mem == nil && len(user.transfers.windows.owners) == 0
	})
}

// TestWindowInUse: what is being copied stays mapped.
func TestWindowInUse(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	mem, free := allocated(t, owner, 4096)
	r := expose(t, owner, user, mem, na.ReadWrite)
	user.see(t, to, r)
	ws := &user.transfers.windows
	w := ws.use(to.ident, owner.mem.arenas.of([][]byte{mem}))
	if w == nil {
		t.Fatal("no window")
	}
	free()
	until(t, "news that the arena is gone", func() bool {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		return w.gone
	})
	w.mem[4095] = 1 // faults if it is unmapped
	ws.release(w)
	if w.mem != nil {
		t.Error("it is mapped although nobody uses it")
	}
}

// TestMapArenaRefuses: files that their sender could shrink, or that are smaller than it says, are not mapped.
func TestMapArenaRefuses(t *testing.T) {
	file := func(size int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "test")
		t.Cleanup(func() { _ = f.Close() })
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return f
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB); err == nil { // else this kernel has none
		huge := os.NewFile(uintptr(fd), "huge")
		defer huge.Close()
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			t.Fatal(err)
		}
		if err := huge.Truncate(2 << 20); err != nil {
			t.Fatal(err)
		}
		if _, err := mapArena(huge, 4096); err == nil || !strings.Contains(err.Error(), "file system") {
			t.Errorf("huge pages: %v", err)
		}
	}
	for name, f := range map[string]*os.File{
		"no seal": file(4096, 0), "the wrong seal": file(4096, unix.F_SEAL_GROW), "too small": file(4095, unix.F_SEAL_SHRINK), "no memory": plain,
	} {
		if mem, err := mapArena(f, 4096); err == nil {
			t.Errorf("%s: it is mapped: %d bytes", name, len(mem))
		}
	}
}

// TestWindowHostileOwner: an owner that breaks the protocol has no windows, and nothing else happens.
func TestWindowHostileOwner(t *testing.T) {
	good := appendGrant(nil, grant{kind: grantGiven, id: 7, base: 0x1000, size: 4096})
	for name, say := range map[string][]byte{
		"nonsense":         []byte(strings.Repeat("x", grantLen)),
		"nothing":          nil,
		"part of a grant":  good[:10],
		"a grant unasked":  appendGrant(nil, grant{kind: grantGiven, id: 8, base: 0x1000, size: 4096}),
		"a grant of air":   good,
		"an end of no one": appendGrant(nil, grant{kind: grantGone, id: 9}),
	} {
		t.Run(name, func(t *testing.T) {
			owner, user := memoryEnd(t), memoryEnd(t)
			to := addrOfEnd(user, owner)
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: relayName(owner.ident), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			if w := user.transfers.windows.use(to.ident, 7); w != nil {
				t.Fatal("a window out of nothing")
			}
			c := accept(t, ln)
			if _, err := c.Write(say); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			until(t, "end of the connection", func() bool {
				user.transfers.windows.mu.Lock()
				defer user.transfers.windows.mu.Unlock()
				return len(user.transfers.windows.owners) == 0
			})
		})
	}
}

func TestGrant(t *testing.T) {
	for _, g := range []grant{{grantGiven, 1, 0x7f0000000000, 4096}, {grantRefused, 1<<56 - 1, 0, 0}, {grantGone, 5, 0, 0}} {
		if got, err := parseGrant(appendGrant(nil, g)); err != nil || got != g {
			t.Errorf("%+v, %v; want %+v", got, err, g)
		}
	}
	for _, g := range []grant{{kind: 3}, {grantGiven, 1, 0x1000, 0}, {grantGiven, 1, 0, maxArena + 1}, {grantGiven, 1, 1<<64 - 1, 2}} {
		if _, err := parseGrant(appendGrant(nil, g)); err == nil {
			t.Errorf("%+v is accepted", g)
		}
	}
	if _, err := parseGrant(make([]byte, grantLen)); err == nil {
		t.Error("zeros are accepted")
	}
}
