package sm

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// A program that truncates the file of a region makes all processes fault that access the missing part. The endpoint then makes its
// own region anew in the same file, so that clients that have it mapped need not map another one:
//
//   - Clients of this package are notified, lose the operations under way, and connect anew with their next message.
//   - Clients in C keep all positions in the region, so they go on with empty rings. They lose the operations under way without a
//     notice. One that has accessed the missing part is dead, as it would be with a server in C.

// cutOff reports whether err means that the endpoint's own region, to which c belongs, is cut off. The poller then makes it anew, and
// the peer is not at fault.
func (e *Endpoint) cutOff(c *conn, err error) bool {
	if !c.server || c.reg != e.region || e.maintenance.gone.Load() || e.closed.Load() {
		return false
	}
	if !errors.Is(err, shm.ErrFault) && !errors.Is(err, errZero) { // the rest of the page that the file ends in is zeros
		return false
	}
	if !e.maintenance.cut.Swap(true) {
		e.poll.wake()
	}
	return true
}

// recoverRegion makes the region anew if it is damaged. Only the poller calls it.
func (e *Endpoint) recoverRegion() {
	e.maintenance.cut.Store(false) // a goroutine that finds the region cut off from now on sets it again
	if e.region == nil || e.closed.Load() || e.maintenance.gone.Load() {
		return
	}
	path, err := e.regionFile()
	if e.intact(path) {
		return
	}
	e.setRecovering(true)
	held := e.holdConns()
	if err == nil {
		err = e.rebuildWhole(path, held)
	}
	e.maintenance.gone.Store(err != nil)
	e.setRecovering(false)
	for _, h := range held {
		if err != nil {
			h.fail(na.Unreachable, errRebuilt)
		}
		h.release()
	}
	switch {
	case !e.mayLog(e.own):
	case err != nil:
		e.cfg.Logger.Error("another program has cut off the endpoint's region, which cannot be made anew: open the endpoint again", keyPeer, e.own.String(), keyError, err)
	default:
		e.cfg.Logger.Warn("another program has cut off the endpoint's region; it is made anew without its messages", keyPeer, e.own.String())
	}
}

// setRecovering sets whether the endpoint refuses to connect to itself. Connections with peers are made by the poller, which calls it.
func (e *Endpoint) setRecovering(yes bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recovering = yes
}

// regionFile returns a name of the region's file.
func (e *Endpoint) regionFile() (string, error) {
	for _, path := range [...]string{e.cfg.spareObject(e.own.uri), e.cfg.objectPath(e.own.uri)} {
		if f, err := lstat(path); err == nil && f.Same(e.files.region) {
			return path, nil
		}
	}
	return "", errors.New("its file has no name any more")
}

// intact reports whether the region is whole, as far as its first and last words and the size of its file show. path is "" if the file
// has no name.
func (e *Endpoint) intact(path string) (yes bool) {
	if path != "" {
		if st, err := os.Stat(path); err != nil || st.Size() < extendedSize {
			return false
		}
	}
	err := e.region.read(func() {
		_ = shm.Uint64(e.region.b, extendedSize-8).Load() // faults if it is cut off
		yes = e.region.owner() == e.ident && e.region.whole()
	})
	return yes && err == nil
}

// heldConn is a conn of which no other goroutine uses the region.
type heldConn struct {
	*conn
	asked bool // the conn's lock admission is held in place of its receive role
}

// hold keeps other goroutines from using the region of c, which the poller makes anew, and returns false if c is dead. It does not wait while the
// program is asked about the client of c, because the answer may take long: the goroutine that asks has the receive role, and waits for the lock
// admission before it uses the region.
//
// +checklocksignore: release unlocks admission
func (c *conn) hold() (h heldConn, ok bool) {
	c.admission.Lock()
	if h = (heldConn{c, c.asked}); !h.asked {
		c.admission.Unlock()
		if !c.takeRole() {
			return heldConn{}, false
		}
	}
	if c.dead.Load() {
		h.release()
		return heldConn{}, false
	}
	return h, true
}

// release ends hold.
//
// +checklocksignore: hold has locked admission
func (h *heldConn) release() {
	if h.asked {
		h.admission.Unlock()
		return
	}
	h.leave()
}

// holdConns holds all conns of the endpoint's own region, and returns them. The conns with this endpoint
// and with clients of this package fail; they are torn down when their role is left, so that their doorbells are open until then.
// Conns that have failed before are left out, because another conn may have their Addr by now.
func (e *Endpoint) holdConns() (held []heldConn) {
	for _, c := range e.list() {
		if !c.server || c.reg != e.region {
			continue
		}
		h, ok := c.hold()
		if !ok {
			continue
		}
		held = append(held, h)
		if c.self || c.ext != nil {
			c.ending.Store(&ending{kind: na.Unreachable, err: errRebuilt, keep: true})
			c.fail(na.Unreachable, errRebuilt)
		}
	}
	return held
}

// rebuildTries bounds the rebuilding of a region that is cut off again in the meantime.
const rebuildTries = 8

// rebuildWhole calls rebuild, again if the region is cut off in the meantime.
func (e *Endpoint) rebuildWhole(path string, held []heldConn) (err error) {
	for range rebuildTries {
		if err = e.rebuild(path, held); !errors.Is(err, shm.ErrFault) {
			return err
		}
	}
	return err
}

// rebuild makes the region anew. No goroutine sends or receives through it in the meantime, because the caller holds all conns,
// and rebuild takes the locks of all peers.
//
// +checklocksignore
func (e *Endpoint) rebuild(path string, held []heldConn) error {
	if err := shm.Extend(path, e.files.region, extendedSize); err != nil {
		return err
	}
	taken := e.knownPairs()
	for _, c := range held {
		c.addr.mu.Lock()
		defer c.addr.mu.Unlock()
	}
	e.maintenance.rebuilt++
	return e.region.read(func() {
		e.region.initBut(e.ident, startTime("self"), taken)
		shm.Uint32(e.region.b, offRebuilt).Store(e.maintenance.rebuilt)
		shm.Uint64(e.region.b, offBeside).Store(e.beside.Load())
		if e.refusing.Load() {
			e.region.setClosing(closingRefuses)
		}
		for _, c := range held {
			c.restart()
		}
	})
}

// restart empties a conn of a region that was made anew. It notifies a client of this package that its conn has failed by a message in
// every slot, because the client decides which slot it reads next. A client that has not read a full ring does not see the message,
// but reads offRebuilt at intervals. The caller holds addr.mu.
func (c *conn) restart() {
	switch b := c.reg.rx(c.pair); {
	case c.self:
	case c.ext == nil:
		c.out, c.in = producer(b), consumer(c.reg.tx(c.pair))
	default:
		for i := range ringSlots {
			shm.Uint64(b, offSlots+i*slotSize).Store(uint64(makeDescriptor(0, 0, 0, typeRebuilt)))
		}
		shm.Uint32(b, offProdTail).Store((c.out.at + 1) & ringMask)
		c.signalPeer(1)
	}
}

// HG_Cleanup of C's Mercury removes all regions and sockets with the names that C gives them, those of living servers too. C's
// benchmark servers call it when they start, on any network. Therefore an endpoint has a second name of another form for each of its
// two files, and restores the first name from it. Processes that have the files open do not notice.

func (cfg *Config) spareObject(uri string) string {
	return filepath.Join(cfg.ShmDir, "."+cfg.Prefix+"-"+uri)
}

func (cfg *Config) spareSocket(uri string) string {
	return filepath.Join(cfg.SocketDir, "."+cfg.Prefix+"-"+uri)
}

// keepSpare gives the file at path, which f describes, its second name. Some file systems do not allow one; a removed file is lost
// then. It cannot remove a file of another user that has the second name; it logs that, because the endpoint would otherwise seem
// protected.
func (e *Endpoint) keepSpare(path, spare string, f shm.File) {
	_ = os.Remove(spare) // the first name is this endpoint's, so the second one has no owner
	err := linkSame(path, f, unix.AT_FDCWD, spare)
	if errors.Is(err, fs.ErrExist) {
		if err = foreignAt(spare, nil); err != nil {
			e.cfg.Logger.Warn("the endpoint's file will not be restored if another program removes it, because a file of another user has its second name", keyPeer, e.own.String(), keyError, err)
		}
	}
}

// removeSame removes a file if it is still the one that f describes.
func removeSame(path string, f shm.File) {
	if now, err := lstat(path); err == nil && f.Ino != 0 && now.Same(f) {
		_ = os.Remove(path) // the next endpoint that opens reclaims a file that is left
	}
}

// restoreDelay is the time between the removal of a file and its restoration, so that the program that removes files has finished.
const restoreDelay = 10 * time.Millisecond

// restore gives the endpoint's files their names back.
func (e *Endpoint) restore() {
	defer e.stats.restores.Add(1)
	uri := e.own.uri
	region, regionErr := restoreName(e.cfg.spareObject(uri), e.files.region, unix.AT_FDCWD, e.cfg.objectPath(uri))
	socket, socketErr := false, error(nil)
	if dir, err := e.makeSocketDir(); err != nil {
		socketErr = err
	} else {
		closeAll(e.sockDir)
		e.sockDir = dir
		socket, socketErr = restoreName(e.cfg.spareSocket(uri), e.files.socket, dir, sockName)
	}
	if !region && !socket && regionErr == nil && socketErr == nil {
		return
	}
	switch {
	case !e.mayLog(e.own):
	case regionErr != nil || socketErr != nil:
		e.cfg.Logger.Warn("another program has removed the endpoint's files, perhaps by HG_Cleanup, and they cannot be restored", keyPeer, e.own.String(), keyError, errors.Join(regionErr, socketErr))
	default:
		e.cfg.Logger.Warn("another program has removed the endpoint's files, perhaps by HG_Cleanup; they are restored", keyPeer, e.own.String())
	}
}

// restoreName gives the file f its first name again, which is name in the directory dir, and reports whether the name was missing. It
// leaves a file of a trusted user that has the name. It compares the file of the second name with f, because other users can take that
// name once it is free.
func restoreName(spare string, f shm.File, dir int, name string) (done bool, err error) {
	if fd, err := openPath(dir, name, 0); err == nil {
		now, err := shm.FileOf(fd)
		closeAll(fd)
		if err == nil {
			err = checkFile(name, now, 0)
		}
		return false, err
	}
	err = linkSame(spare, f, dir, name)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist): // there never was a second name, or it is removed too
		return false, nil
	}
	return err == nil, err
}

// openNotify asks the kernel for events when a process opens, truncates, or removes the endpoint's region, or removes the socket. If
// it refuses, the poller looks for clients that never sleep at intervals.
func (e *Endpoint) openNotify() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	// The count of a file's names is one of its attributes.
	_, err = unix.InotifyAddWatch(fd, e.cfg.objectPath(e.own.uri), unix.IN_OPEN|unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_MODIFY|unix.IN_DONT_FOLLOW)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, pathOf(e.sockDir)+"/"+sockName, unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_DONT_FOLLOW)
	}
	if err == nil {
		err = e.poll.add(fd, unix.EPOLLIN, eventNotify, 0)
	}
	if err != nil {
		closeAll(fd)
		return
	}
	e.notify = fd
}

// readNotify records the events of the files.
func (e *Endpoint) readNotify() {
	var b [1024]byte
	for {
		n, err := unix.Read(e.notify, b[:])
		if n <= 0 || err != nil {
			return
		}
		mask := notifyMask(b[:n])
		if mask&unix.IN_OPEN != 0 {
			e.maintenance.opened()
		}
		if mask&unix.IN_MODIFY != 0 {
			e.recoverRegion()
		}
		if mask&^(unix.IN_OPEN|unix.IN_IGNORED|unix.IN_MODIFY) != 0 && e.maintenance.restore.IsZero() {
			e.maintenance.restore = time.Now().Add(restoreDelay)
		}
	}
}

// notifyMask returns the union of the masks of the events in b.
func notifyMask(b []byte) (mask uint32) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask |= binary.NativeEndian.Uint32(b[4:])
		n := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		b = b[min(n, len(b)):]
	}
	return mask
}
