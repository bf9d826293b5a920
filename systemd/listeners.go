package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// Listener is a socket that the service manager has opened for the service.
type Listener struct {
	net.Listener
	Name string // FileDescriptorName= of the socket unit; systemd's default is the name of that unit, and "unknown" stands for none
}

const (
	firstDescriptor = 3    // SD_LISTEN_FDS_START
	maxDescriptors  = 1024 // that Listeners takes
	unknownName     = "unknown"
)

// taken is set by the first call of Listeners that finds descriptors, because their numbers belong to other files afterwards.
var taken atomic.Bool

// ErrTaken is the error of a second call of [Listeners].
var ErrTaken = errors.New("the sockets of the service manager are taken already")

// Listeners returns the listening sockets that the service manager has opened, in the order of the socket units, and none if it has opened
// none for this process. The caller closes them. Listeners takes over the descriptors, so only its first call returns them; a later
// one fails with [ErrTaken]. A descriptor that does not listen for streams, or that this process has opened itself, is an error. Then Listeners takes none of
// them and closes none, because a LISTEN_FDS that is too large names descriptors of the program.
func Listeners() ([]Listener, error) {
	names, err := descriptorNames(os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES"), os.Getpid())
	if err != nil || len(names) == 0 {
		return nil, err
	}
	if taken.Load() {
		return nil, ErrTaken
	}
	for i, name := range names {
		if derr := checkDescriptor(firstDescriptor + i); derr != nil {
			err = errors.Join(err, fmt.Errorf("socket %d of the service manager, %q: %w", i+1, name, derr))
		}
	}
	if err != nil {
		return nil, err
	}
	if taken.Swap(true) {
		return nil, ErrTaken
	}
	return takeListeners(firstDescriptor, names)
}

// Errors of descriptors that are no sockets of the service manager.
var (
	errNotPassed = errors.New("the service manager has not passed it to this process; LISTEN_FDS is too large")
	errNoStream  = errors.New("it does not listen for streams (ListenStream= of the socket unit)")
)

// descriptorNames returns the names of the descriptors that were passed to process self, from firstDescriptor on.
func descriptorNames(pid, count, names string, self int) ([]string, error) {
	if pid == "" || count == "" {
		return nil, nil
	}
	p, err := strconv.ParseUint(pid, 10, 31)
	if err != nil {
		return nil, fmt.Errorf("LISTEN_PID=%q is no process id", pid)
	}
	if int(p) != self { // the variables were inherited from a process that they were for
		return nil, nil
	}
	n, err := strconv.ParseUint(count, 10, 31)
	if err != nil || n > maxDescriptors {
		return nil, fmt.Errorf("LISTEN_FDS=%q is no number of descriptors from 0 to %d", count, maxDescriptors)
	}
	list := make([]string, n)
	given := strings.Split(names, ":")
	if names != "" && len(given) != len(list) {
		return nil, fmt.Errorf("LISTEN_FDNAMES has %d names for %d descriptors", len(given), n)
	}
	for i := range list {
		if list[i] = unknownName; names != "" {
			list[i] = given[i]
		}
	}
	return list, nil
}

// takeListeners makes listeners of the descriptors from first on, and closes the descriptors.
func takeListeners(first int, names []string) (list []Listener, err error) {
	for i, name := range names {
		l, lerr := takeListener(first+i, name)
		if lerr != nil {
			err = errors.Join(err, fmt.Errorf("socket %d of the service manager, %q: %w", i+1, name, lerr))
			continue
		}
		list = append(list, Listener{Listener: l, Name: name})
	}
	if err != nil {
		for _, l := range list {
			_ = l.Close() // the caller receives the earlier error
		}
		return nil, err
	}
	return list, nil
}

// takeListener makes a listener of a descriptor, and closes the descriptor.
func takeListener(fd int, name string) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), name)
	if f == nil {
		return nil, fmt.Errorf("descriptor %d cannot be used", fd)
	}
	l, err := net.FileListener(f) // has a descriptor of its own, which programs that this process starts do not inherit
	if cerr := f.Close(); err == nil && cerr != nil {
		return nil, errors.Join(cerr, l.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoStream, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the file belongs to the manager
	}
	return l, nil
}
