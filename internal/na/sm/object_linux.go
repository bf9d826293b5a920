package sm

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// The files of an endpoint: its region, and a directory with its socket.

func (cfg *Config) objectPath(uri string) string {
	return filepath.Join(cfg.ShmDir, cfg.Prefix+"-"+uri)
}
func (cfg *Config) socketDir(uri string) string {
	return filepath.Join(cfg.SocketDir, cfg.Prefix+"-"+uri)
}
func (cfg *Config) socketPath(uri string) string { return filepath.Join(cfg.socketDir(uri), "sock") }

// maxNumbers is the largest number of endpoints of a process, because a number has 8 bits.
const maxNumbers = 256

// numbers are the numbers of the endpoints of this process. They count up like those of C, and start again after 255.
var numbers struct {
	mu sync.Mutex
	// +checklocks:mu
	next uint8
	// +checklocks:mu
	taken [maxNumbers]bool
}

// takeNumber returns a number that no endpoint of this process has.
func takeNumber() (uint8, error) {
	n := &numbers
	n.mu.Lock()
	defer n.mu.Unlock()
	for range len(n.taken) {
		id := n.next
		n.next++
		if !n.taken[id] {
			n.taken[id] = true
			return id, nil
		}
	}
	return 0, fmt.Errorf("this process has %d endpoints already, and there are no more numbers: close some", len(n.taken))
}

func returnNumber(id uint8) {
	numbers.mu.Lock()
	defer numbers.mu.Unlock()
	numbers.taken[id] = false
}

// createRegion creates and publishes the region of an endpoint. It sets the region up under another name, so that no peer sees an
// incomplete one. It removes a region of that name if its process is dead; the region of a living process is an error.
func (e *Endpoint) createRegion() error {
	path := e.cfg.objectPath(e.own.uri)
	// Another user cannot take a name that is not known before, as .new alone would be.
	draft := path + "." + rand.Text() + draftSuffix
	m, err := shm.Create(draft, extendedSize)
	if err != nil {
		return err
	}
	r := newRegion(m)
	r.init(e.ident, startTime("self"))
	err = publish(draft, path)
	if errors.Is(err, fs.ErrExist) && reclaim(&e.cfg, e.own.uri) {
		err = publish(draft, path)
	}
	if err != nil {
		_ = m.Close()        // no peer has seen it, and
		_ = os.Remove(draft) // the error at hand is the one to return
		if errors.Is(err, fs.ErrExist) {
			if foreign := foreignAt(path, nil); foreign != nil {
				return foreign
			}
			return &na.Error{Kind: na.InUse, Op: "open", Addr: e.own.String(), Err: fmt.Errorf("%s is the region of an endpoint in another, living process", path)}
		}
		return err
	}
	e.region = r
	e.files.region = m.File()
	return nil
}

// draftSuffix ends the name of a region that is being set up.
const draftSuffix = ".new"

// publish gives a file its name, unless that is taken.
func publish(draft, path string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, draft, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: draft, New: path, Err: err}
	}
	return nil
}

// startTime returns the time at which a process started, in ticks since the system started: the 22nd field of /proc/PID/stat. 0:
// unknown.
func startTime(pid string) uint64 {
	fields := statFields(pid)
	if len(fields) < 20 {
		return 0
	}
	t, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0
	}
	return t
}

// statFields are the fields of /proc/PID/stat from the third on, the state. The second, a name, may hold anything.
func statFields(pid string) []string {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// reclaimAll removes the files of dead processes. It leaves files that it may not remove. If ctx ends before reclaimAll has looked at all
// files, it returns the cause.
func reclaimAll(ctx context.Context, cfg *Config) error {
	for _, dir := range [...]string{cfg.ShmDir, cfg.SocketDir} {
		list, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, f := range list {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			name := strings.TrimPrefix(f.Name(), ".") // which spares begin with
			if uri, ok := strings.CutPrefix(name, cfg.Prefix+"-"); ok {
				if draft, ok := strings.CutSuffix(uri, draftSuffix); ok {
					removeUnused(cfg.objectPath(uri), false) // mapped while it is being set up
					uri = draft
				}
				reclaim(cfg, uri)
			}
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// reclaim removes the region and the socket of an endpoint if its process is gone, and reports whether there are none any more. An
// endpoint counts as gone only if no process listens on its socket and
//
//   - its process, which its URI or its region names, does not exist, or has started after the one that the region names; and
//   - no process has the region mapped, or only clients of a server with a socket that refuses connections have.
func reclaim(cfg *Config, uri string) bool {
	object := cfg.objectPath(uri)
	if !ownerGone(cfg, uri) {
		return false
	}
	dir, err := openSocketDir(cfg, uri) // never by a link, which another user could have put there
	if isForeign(err) {
		return false
	}
	defer closeAll(dir)
	var dead []deadSocket
	for _, s := range [...]deadSocket{{dir, cfg.socketPath(uri), sockName}, {unix.AT_FDCWD, cfg.spareSocket(uri), cfg.spareSocket(uri)}} {
		if s.dir == -1 {
			continue
		}
		switch refused, absent := s.probe(); {
		case refused:
			dead = append(dead, s)
		case !absent:
			return false
		}
	}
	for _, path := range [...]string{object, object + draftSuffix, cfg.spareObject(uri)} {
		if !removeUnused(path, dead != nil) {
			return false
		}
	}
	for _, s := range dead {
		_ = unix.Unlinkat(s.dir, s.name, 0)
	}
	_ = os.Remove(cfg.socketDir(uri)) // stays if there is anything else in it
	return true
}

// deadSocket is a socket that may be one that no process listens on any more: name in the directory dir.
type deadSocket struct {
	dir        int
	path, name string
}

// probe reports whether the socket is there but no process listens, or it is not there. A socket of another user counts
// as one that is listened on.
func (s *deadSocket) probe() (refused, absent bool) {
	fd, err := openSocketIn(s.dir, s.path, s.name)
	if err != nil {
		return false, errors.Is(err, fs.ErrNotExist)
	}
	defer closeAll(fd)
	return probeSocket(pathOf(fd))
}

// removeUnused removes a region that no process has mapped. If dead is true, because the owner is known to be dead, it removes the
// region although clients have it mapped. It reports whether there is none any more.
func removeUnused(path string, dead bool) bool {
	unused, err := shm.Unused(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || !unused && !dead {
		return false
	}
	return os.Remove(path) == nil
}

// ownerGone reports whether the process that owned the region and socket of uri does not exist any more.
func ownerGone(cfg *Config, uri string) bool {
	ident, named := parseIdentity(uri)
	var head struct {
		ident   identity
		started uint64
	}
	m, err := shm.Open(cfg.objectPath(uri), regionSize, regionSize)
	if errors.Is(err, fs.ErrNotExist) {
		m, err = shm.Open(cfg.spareObject(uri), regionSize, regionSize)
	}
	if err == nil {
		r := newRegion(m)
		if r.read(func() {
			head.ident = r.owner()
			if shm.Uint64(r.b, offMagic).Load() == magic {
				head.started = shm.Uint64(r.b, offStarted).Load()
			}
		}) != nil {
			head.ident = identity{}
		}
		_ = m.Close() // it was only read
	}
	if !named {
		ident = head.ident
	}
	if ident.pid <= 0 {
		return err == nil || !errors.Is(err, fs.ErrPermission) // there is no region that a process could own
	}
	if processGone(ident.pid) {
		return true
	}
	now := startTime(strconv.Itoa(int(ident.pid)))
	return head.started != 0 && now != 0 && now != head.started
}

// processGone reports whether no process has that number, or the process has ended and its parent has not waited for it yet. /proc
// shows the state of the first thread, which may end before others do, so a descriptor of the process is asked first.
func processGone(pid int32) bool {
	fd, err := openProcess(pid)
	if err != nil {
		return true
	}
	if fd >= 0 {
		defer closeAll(fd)
		return ended(fd)
	}
	if errors.Is(unix.Kill(int(pid), 0), unix.ESRCH) {
		return true
	}
	fields := statFields(strconv.Itoa(int(pid)))
	return len(fields) > 0 && (fields[0] == "Z" || fields[0] == "X")
}

// probeSocket reports whether the socket is there but no process listens, or whether it is not there.
func probeSocket(path string) (refused, absent bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, false
	}
	defer closeAll(fd)
	switch err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); {
	case errors.Is(err, unix.ECONNREFUSED):
		return true, false
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false, true
	}
	return false, false
}

// read calls f, which reads the region, with faults caught.
func (r *region) read(f func()) (err error) {
	defer r.Recover(r.Guard(), &err)
	f()
	return nil
}

// removeObjects removes the files of the endpoint.
func (e *Endpoint) removeObjects() {
	if e.region == nil {
		return
	}
	uri := e.own.uri
	for _, path := range [...]string{e.cfg.objectPath(uri), e.cfg.spareObject(uri)} {
		removeSame(path, e.files.region)
	}
	if e.bound {
		removeSame(e.cfg.spareSocket(uri), e.files.socket)
		removeSame(pathOf(e.sockDir)+"/"+sockName, e.files.socket)
	}
	_ = os.Remove(e.cfg.socketDir(uri)) // as C's clean-up would; stays if there is anything in it
}
