package autosm

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cinnabar/internal/na"
)

// listensAt returns an error unless process pid listens at a TCP address, as a process in C with that address does. It returns nil for an
// address of another network, because the system does not say which process listens there.
func listensAt(pid int, a na.Addr) error {
	at, isTCP := strings.CutPrefix(a.String(), "ofi+tcp://")
	if !isTCP {
		return nil
	}
	want, err := netip.ParseAddrPort(at)
	if err != nil {
		return err
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	sockets, err := listeners(dir, want.Port())
	if err != nil {
		return err
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return err
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if err == nil && slices.Contains(sockets, target) {
			return nil
		}
	}
	return fmt.Errorf("process %d does not listen at %s", pid, a)
}

// listeners returns the sockets that listen at a TCP port in the network namespace of the process with this directory in /proc. They have
// the form of the links in its directory fd.
func listeners(dir string, port uint16) (sockets []string, err error) {
	for _, name := range [...]string{"tcp", "tcp6"} {
		list, err := listenersIn(filepath.Join(dir, "net", name), port)
		if err != nil && !os.IsNotExist(err) { // without IPv6 there is no tcp6
			return nil, err
		}
		sockets = append(sockets, list...)
	}
	return sockets, nil
}

// Columns of /proc/PID/net/tcp, and the state TCP_LISTEN in it.
const (
	columnLocal = 1 // address and port in hexadecimal digits, with a colon between
	columnState = 3
	columnInode = 9
	stateListen = "0A"
)

func listenersIn(path string, port uint16) (sockets []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it is only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		columns := strings.Fields(lines.Text())
		if len(columns) <= columnInode || columns[columnState] != stateListen {
			continue
		}
		if _, digits, _ := strings.Cut(columns[columnLocal], ":"); digits == fmt.Sprintf("%04X", port) {
			sockets = append(sockets, "socket:["+columns[columnInode]+"]")
		}
	}
	return sockets, lines.Err()
}
