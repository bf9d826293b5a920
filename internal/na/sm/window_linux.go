package sm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// window is an arena of a peer that is mapped into this process.
type window struct {
	base  uint64 // its address in the peer's process
	mem   []byte
	users int  // transfers that use it; guarded by windows.mu
	gone  bool // to be unmapped when users is 0; guarded by windows.mu
}

// part returns the n bytes at addr of the peer's process, nil if the window does not have them.
func (w *window) part(addr, n uint64) []byte {
	size := uint64(len(w.mem))
	if addr < w.base || addr-w.base > size || n > size-(addr-w.base) {
		return nil
	}
	return w.mem[addr-w.base:][:n:n]
}

// windows holds the arenas of peers that an endpoint has mapped. An arena is mapped in the background after its first use, because
// mapping costs about as much as a transfer, and an arena with one use is usually not used again.
type windows struct {
	mu sync.Mutex
	// +checklocks:mu
	owners map[identity]*windowOwner
	// bytes is the sum of the sizes of the windows.
	// +checklocks:mu
	bytes uint64
	// +checklocks:mu
	closed bool

	wg sync.WaitGroup // of the goroutines of owners
}

// Bounds on the memory that is mapped. Other arenas are accessed through the kernel. The file of an arena may have any length although
// it takes no memory, so without a bound a peer could use up the addresses of this process.
const (
	maxWindows     = 256     // arenas of one peer
	maxWindowBytes = 1 << 40 // of all peers
)

// windowOwner is a peer with mapped arenas. A goroutine reads its grants until the connection ends.
type windowOwner struct {
	ident identity
	c     *net.UnixConn // nil until it is connected; guarded by windows.mu
	// maps holds the arenas that were asked for: nil until the grant of one has come. Guarded by windows.mu.
	maps map[uint64]*window
	ask  chan uint64 // ids to ask for
}

// use returns the window on an arena, which the caller releases. If there is none it returns nil, and asks the owner for the arena, so
// that a later use may find one.
func (ws *windows) use(ident identity, id uint64) *window {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	o := ws.owners[ident]
	if o == nil {
		if ws.closed {
			return nil
		}
		o = ws.addLocked(ident)
	}
	w, asked := o.maps[id]
	if w != nil {
		w.users++
		return w
	}
	if !asked && len(o.maps) < maxWindows {
		select {
		case o.ask <- id:
			o.maps[id] = nil
		default: // it is busy; the next use asks again
		}
	}
	return nil
}

// +checklocks:ws.mu
func (ws *windows) addLocked(ident identity) *windowOwner {
	o := &windowOwner{ident: ident, maps: make(map[uint64]*window), ask: make(chan uint64, 16)}
	if ws.owners == nil {
		ws.owners = make(map[identity]*windowOwner)
	}
	ws.owners[ident] = o
	ws.wg.Go(func() { ws.requestArenas(o) })
	return o
}

// release ends the use of a window.
func (ws *windows) release(w *window) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.users--
	ws.unmapUnused(w)
}

// unmapUnused unmaps a window that is gone and that no transfer uses.
//
// +checklocks:ws.mu
func (ws *windows) unmapUnused(w *window) {
	if w.gone && w.users == 0 && w.mem != nil {
		ws.bytes -= uint64(len(w.mem))
		_ = unix.Munmap(w.mem) // it was mapped
		w.mem = nil
	}
}

// reserve counts n bytes that are about to be mapped, and reports whether there is room for them.
func (ws *windows) reserve(n uint64) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n > maxWindowBytes-ws.bytes {
		return false
	}
	ws.bytes += n
	return true
}

func (ws *windows) unreserve(n uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.bytes -= n
}

// requestArenas asks an owner for arenas, one at a time, and reads the grants.
func (ws *windows) requestArenas(o *windowOwner) {
	l, err := dialRelay(o.ident)
	if err != nil { // it has no relay, and is not asked again
		return
	}
	defer func() { _ = l.c.Close() }() // no bytes of it are needed any more
	ws.mu.Lock()
	o.c = l.c
	closed := ws.closed
	ws.mu.Unlock()
	if closed {
		return
	}
	over := make(chan struct{})
	ws.wg.Go(func() {
		defer close(over)
		_ = ws.listen(o, l.c) // after any error the peer's arenas are dropped
		ws.forget(o)
	})
	for {
		select {
		case id := <-o.ask:
			b := appendRelayHead(nil, relayHead{access: relayMap, segments: 1, bytes: 1})
			if _, err := l.c.Write(appendSegment(b, segment{id, 1})); err != nil {
				_ = l.c.Close() // ends listen
			}
		case <-over:
			return
		}
	}
}

// forget removes an owner and its windows, so that a later use connects to it again.
func (ws *windows) forget(o *windowOwner) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.owners[o.ident] == o {
		delete(ws.owners, o.ident)
	}
	for _, w := range o.maps {
		if w != nil {
			w.gone = true
			ws.unmapUnused(w)
		}
	}
}

var errRights = errors.New("a grant does not come with exactly one file")

// listen takes grants until the connection ends.
func (ws *windows) listen(o *windowOwner, c *net.UnixConn) error {
	var b [grantLen]byte
	oob := make([]byte, unix.CmsgSpace(4*8))
	for {
		n, oobn, _, _, err := c.ReadMsgUnix(b[:], oob)
		if err != nil {
			return err
		}
		files, err := filesOf(oob[:oobn])
		if err == nil {
			_, err = io.ReadFull(c, b[n:])
		}
		if err == nil {
			err = ws.take(o, b[:], files)
		}
		for _, f := range files {
			_ = f.Close() // the mapping does not need it
		}
		if err != nil {
			return err
		}
	}
}

// filesOf returns the files that came with a message.
func filesOf(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "arena"))
		}
	}
	return files, nil
}

// take applies one grant.
func (ws *windows) take(o *windowOwner, b []byte, files []*os.File) error {
	g, err := parseGrant(b)
	if err != nil {
		return err
	}
	if g.kind != grantGiven {
		ws.drop(o, g.id)
		return nil
	}
	if len(files) != 1 {
		return errRights
	}
	if !ws.reserve(g.size) {
		return nil // it was asked for, so it is not asked for again
	}
	mem, err := mapArena(files[0], g.size)
	if err != nil {
		ws.unreserve(g.size)
		return err
	}
	return ws.keep(o, g.id, &window{base: g.base, mem: mem})
}

// keep adds a window, if its arena was asked for.
func (ws *windows) keep(o *windowOwner, id uint64, w *window) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if old, asked := o.maps[id]; !asked || old != nil || ws.closed {
		w.gone = true
		ws.unmapUnused(w)
		return fmt.Errorf("arena %#x was not asked for", id)
	}
	o.maps[id] = w
	return nil
}

// drop removes an arena that is freed, or was freed when it was asked for. A transfer with an old handle of the arena asks for it
// again; no other arena gets its number.
func (ws *windows) drop(o *windowOwner, id uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := o.maps[id]
	delete(o.maps, id)
	if w != nil {
		w.gone = true
		ws.unmapUnused(w)
	}
}

// mapArena maps a file from a peer, unless the peer could make accesses to it fault.
func mapArena(f *os.File, size uint64) ([]byte, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var mem []byte
	var sysErr error
	err = raw.Control(func(fd uintptr) { mem, sysErr = mapPeerFile(int(fd), size) })
	return mem, errors.Join(err, sysErr)
}

func mapPeerFile(fd int, size uint64) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("an arena without seals: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	if fs.Type != unix.TMPFS_MAGIC { // in a file of huge pages a hole makes accesses fault if no page is left
		return nil, fmt.Errorf("an arena in a file system of type %#x; it should be %#x", fs.Type, unix.TMPFS_MAGIC)
	}
	if seals&arenaSeals != arenaSeals || uint64(st.Size) < size {
		return nil, fmt.Errorf("an arena with seals %#x and %d bytes; it should have %#x and %d", seals, st.Size, arenaSeals, size)
	}
	return unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// close unmaps everything. No transfer is under way any more.
func (ws *windows) close() {
	ws.mu.Lock()
	ws.closed = true
	for _, o := range ws.owners {
		if o.c != nil {
			_ = o.c.Close() // ends listen, which ends requestArenas
		}
	}
	ws.mu.Unlock()
	ws.wg.Wait()
}

// windowFor returns the window that contains all remote memory of t, nil if there is none.
func (ws *windows) windowFor(t *transfer) *window {
	var id uint64
	for i := range t.at.frags {
		r, _ := t.at.frags[i].Remote.(*remote) // checked when the transfer started
		if r.arena == 0 || id != 0 && r.arena != id {
			return nil
		}
		id = r.arena
	}
	return ws.use(t.to.ident, id)
}

// runMapped copies all bytes, callBytes of them at a time.
func (t *transfer) runMapped(w *window) error {
	for t.done < t.total {
		if err := t.check(); err != nil {
			return err
		}
		n, err := t.copyMapped(w)
		if err != nil {
			return err
		}
		t.done += n
		t.op.Progress.Add(int64(n))
	}
	return nil
}

// copyMapped copies the next bytes, at most callBytes.
func (t *transfer) copyMapped(w *window) (moved uint64, err error) {
	for {
		ours, addr := t.at.next(callBytes - moved)
		if ours == nil {
			return moved, nil
		}
		n := uint64(len(ours))
		theirs := w.part(addr, n)
		if theirs == nil {
			return moved, &na.Error{Kind: na.Denied, Err: fmt.Errorf("%d bytes at %#x lie outside the arena that the handle names", n, addr)}
		}
		if t.put {
			hostmem.CopyExposed(theirs, ours)
		} else {
			hostmem.CopyExposed(ours, theirs)
		}
		t.at.advance(len(ours))
		moved += n
	}
}
