package sm

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
)

// arena is memory of this process that peers can map into their address spaces, and then copy from and to without the kernel. It is a
// file without a name that can neither shrink nor grow, so that no process can make another one fault that has the file mapped.
type arena struct {
	id   uint64 // of 56 bits, random: no two of any processes are the same
	file *os.File
	mem  []byte
	base uint64 // address of mem
}

// arenas are the arenas of an endpoint.
type arenas struct {
	mu sync.RWMutex
	// +checklocks:mu
	live map[uint64]*arena
}

const arenaIDBits = 56 // the bits that a memory handle has for the number

// alloc makes an arena of size bytes, which are zero.
func (t *arenas) alloc(size int) (*arena, error) {
	a, err := newArena(size)
	if err != nil {
		return nil, fmt.Errorf("memory that peers can map: %d bytes: %w", size, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = make(map[uint64]*arena)
	}
	t.live[a.id] = a
	return a, nil
}

func newArena(size int) (*arena, error) {
	fd, err := unix.MemfdCreate("cinnabar", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	a := &arena{file: os.NewFile(uintptr(fd), "memfd:cinnabar"), id: randomArenaID()}
	if a.mem, err = mapSealed(fd, size); err != nil {
		_ = a.file.Close() // the error at hand is the one to return
		return nil, err
	}
	a.base = hostmem.Addr(a.mem)
	return a, nil
}

// arenaSeals are the seals that mapPeerFile demands of a peer's file, because a file that shrinks makes its users fault.
const arenaSeals = unix.F_SEAL_SHRINK

// mapSealed gives a file its size for good, and maps it.
func mapSealed(fd, size int) ([]byte, error) {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, arenaSeals|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func randomArenaID() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		if id := binary.LittleEndian.Uint64(b[:]) >> (64 - arenaIDBits); id != 0 {
			return id
		}
	}
}

// of returns the arena that all of segs lie in, 0 if there is none.
func (t *arenas) of(segs [][]byte) uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for id, a := range t.live {
		if !slices.ContainsFunc(segs, func(s []byte) bool { return !a.contains(s) }) {
			return id
		}
	}
	return 0
}

func (a *arena) contains(mem []byte) bool {
	at, n := hostmem.Addr(mem), uint64(len(mem))
	return n == 0 || at >= a.base && at-a.base <= uint64(len(a.mem)) && n <= uint64(len(a.mem))-(at-a.base)
}

// get returns an arena, nil if there is none.
func (t *arenas) get(id uint64) *arena {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live[id]
}

// remove takes an arena out of the table, so that it is granted to no further peer.
func (t *arenas) remove(a *arena) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, a.id)
}

// close frees an arena that no goroutine of this process uses any more. The pages go back to the system although peers may keep their
// mappings, which then contain zeros.
func (a *arena) close() error {
	_ = unix.Fallocate(int(a.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(a.mem))) // if this fails, the pages go back when the last peer unmaps them
	err := unix.Munmap(a.mem)
	if closeErr := a.file.Close(); err == nil {
		err = closeErr
	}
	return err
}
