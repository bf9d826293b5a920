package sm

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// TestOwnMemoryForged: whatever address a peer binds to a handle that it has made up, this process does not read or
// write its own memory for it, except what is registered.
func TestOwnMemoryForged(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	secret, open := []byte("secret"), make([]byte, 64)
	pin := hostmem.PinSlice(secret)
	defer pin.Unpin()
	if _, err := owner.Register(open, na.ReadOnly); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid := int32(os.Getpid())
	for name, ident := range map[string]identity{
		"another endpoint":     owner.ident,
		"no endpoint":          {pid, 255},
		"a thread":             {int32(unix.Gettid()), owner.ident.id},
		"the endpoint itself":  user.ident,
		"the process's thread": {otherThread(t), 0},
	} {
		to := &Addr{ep: user, ident: ident, uri: ident.uri()}
		for kind, s := range map[string]segment{
			"not registered":    {hostmem.Addr(secret), 6},
			"beyond":            {hostmem.Addr(open) + 60, 8},
			"not to be written": {hostmem.Addr(open), 8},
		} {
			r, err := user.ParseHandle(appendHandle(nil, []segment{s}, na.ReadWrite, 0))
			if err != nil {
				t.Fatal(err)
			}
			if n, err := put(t, user, to, na.Fragment{Remote: r, Local: []byte("owned")}); err == nil || n != 0 {
				t.Errorf("%s, %s: put: %d, %v", name, kind, n, err)
			}
			if kind == "not to be written" {
				continue
			}
			if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, s.len)}); err == nil || n != 0 {
				t.Errorf("%s, %s: get: %d, %v", name, kind, n, err)
			}
		}
	}
	if string(secret) != "secret" || open[0] != 0 {
		t.Errorf("memory was written: %q, %q", secret, open[:8])
	}
}

// otherThread returns the number of a thread of this process that is not its first.
func otherThread(t *testing.T) int32 {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if tid, ok := parseIdentity(d.Name() + "-0"); ok && int(tid.pid) != os.Getpid() {
			return tid.pid
		}
	}
	t.Fatal("this process has one thread")
	return 0
}

// TestOwnMemoryRange: of memory in several segments any range may be moved, and none after the end of its owner.
func TestOwnMemoryRange(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	mem := pattern(300, 1)
	m, err := owner.RegisterSegments([][]byte{mem[:100], nil, mem[150:200], mem[100:150]}, na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	r, err := user.ParseHandle(m.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	for off := range uint64(201) {
		n := min(60, 200-off)
		if got, err := get(t, user, to, na.Fragment{Remote: r, Offset: off, Local: make([]byte, n)}); got != int64(n) || err != nil {
			t.Fatalf("%d bytes at %d: %d, %v", n, off, got, err)
		}
	}
	m.Close()
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 1)}); na.KindOf(err) != na.Denied {
		t.Errorf("memory that is closed: %v", err)
	}
	owner.mem.close()
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 1)}); na.KindOf(err) != na.Unreachable {
		t.Errorf("an endpoint that is closed: %v", err)
	}
	ownMemories.add(owner.ident, &owner.mem)
	if ownMemories.get(owner.ident) != nil {
		t.Error("memory of a closed endpoint is known again")
	}
}

// TestManySegments registers as many segments as a program in C may, each by itself, and moves all of them in one
// transfer, within the process and by the relay.
func TestManySegments(t *testing.T) {
	const segs, each = 50_000, 64
	ways(t, func(t *testing.T, owner, user *Endpoint, to *Addr) {
		mem := pattern(2*segs*each, 9)
		var list []na.Memory
		frags := make([]na.Fragment, segs)
		ours := make([]byte, segs*each)
		for i := range segs {
			m, err := owner.Register(mem[2*i*each:][:each], na.ReadOnly)
			if err != nil {
				t.Fatal(err)
			}
			r, err := user.ParseHandle(m.AppendHandle(nil))
			if err != nil {
				t.Fatal(err)
			}
			list, frags[i] = append(list, m), na.Fragment{Remote: r, Local: ours[i*each:][:each:each]}
		}
		if n, err := get(t, user, to, frags...); n != segs*each || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		for i := range segs {
			if !bytes.Equal(ours[i*each:][:each], mem[2*i*each:][:each]) {
				t.Fatalf("segment %d differs", i)
			}
		}
		for _, m := range list {
			m.Close()
		}
		owner.mem.mu.Lock()
		left := len(owner.mem.index.parts)
		owner.mem.mu.Unlock()
		if left != 0 {
			t.Errorf("%d parts are left in the index", left)
		}
		if _, err := get(t, user, to, frags[segs/2]); na.KindOf(err) != na.Denied {
			t.Errorf("memory that is closed: %v", err)
		}
	})
}

// TestAddressIndex compares the index with looking at all memory, for memory of all lengths that overlaps.
func TestAddressIndex(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	arena := make([]byte, 1<<16)
	base := hostmem.Addr(arena)
	var x addressIndex
	all := map[*memory]struct{}{}
	for range 2000 {
		if rng.IntN(3) == 0 {
			for m := range all {
				x.remove(m)
				delete(all, m)
				break
			}
		} else {
			m := &memory{}
			for range 1 + rng.IntN(4) {
				at := rng.IntN(len(arena))
				m.segs = append(m.segs, arena[at:][:rng.IntN(1+min(len(arena)-at, 1<<rng.IntN(17)))])
			}
			x.add(m)
			all[m] = struct{}{}
		}
		addr := base + uint64(rng.IntN(len(arena)))
		found := map[*memory]struct{}{}
		for m := range x.at(addr) {
			if _, ok := all[m]; !ok {
				t.Fatal("memory that was removed is found")
			}
			if m.part(addr, 1) != nil {
				found[m] = struct{}{}
			}
		}
		for m := range all {
			if _, ok := found[m]; !ok && m.part(addr, 1) != nil {
				t.Fatalf("memory with the byte at %#x is not found", addr)
			}
		}
	}
	for m := range all {
		x.remove(m)
	}
	if len(x.parts) != 0 || x.classes != [65]int{} {
		t.Errorf("%d parts are left", len(x.parts))
	}
}
