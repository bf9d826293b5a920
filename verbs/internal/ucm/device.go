//go:build linux

package ucm

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// classDir is where the kernel shows RDMA devices.
const classDir = "/sys/class/infiniband"

// Numbers of rdma/rdma_netlink.h.
const (
	nldevGet        = 5<<10 | 1  // RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET
	nldevGetChardev = 5<<10 | 15 // RDMA_NLDEV_CMD_GET_CHARDEV
	attrDevIndex    = 1          // RDMA_NLDEV_ATTR_DEV_INDEX
	attrDevName     = 2          // RDMA_NLDEV_ATTR_DEV_NAME
	attrChardevType = 69         // RDMA_NLDEV_ATTR_CHARDEV_TYPE
	attrTypeMask    = 0x3fff     // NLA_TYPE_MASK of linux/netlink.h
)

// names has the names of devices by the kernel's index, which no later device gets again. A name is kept
// as it was at first, because a program that has opened the device knows it by that one.
type names struct {
	mu sync.Mutex
	// +checklocks:mu
	byIndex map[uint32]string
}

// of returns the name of a device, "" if there is none. Several devices can have one GUID, so the index decides if the kernel gives one.
func (n *names) of(guid [8]byte, index uint32) string {
	if index == noIndex {
		return nameByGUID(classDir, guid)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if name := n.byIndex[index]; name != "" {
		return name
	}
	name, err := nameByIndex(index)
	if err != nil {
		return nameByGUID(classDir, guid) // a network namespace or a sandbox without RDMA's netlink
	}
	if n.byIndex == nil {
		n.byIndex = make(map[uint32]string)
	}
	n.byIndex[index] = name
	return name
}

// nameByGUID looks for the first device with the GUID of its node in dir, as librdmacm does without an index.
func nameByGUID(dir string, guid [8]byte) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "" // no device
	}
	want := hex.EncodeToString(guid[:])
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name(), "node_guid"))
		if err == nil && strings.ReplaceAll(strings.TrimSpace(string(text)), ":", "") == want {
			return e.Name()
		}
	}
	return ""
}

func nameByIndex(index uint32) (string, error) {
	value := order.AppendUint32(nil, index)
	answer, err := netlink(nldevGet, attrDevIndex, value)
	if err != nil {
		return "", err
	}
	return attrString(answer, attrDevName)
}

// loadModule makes the kernel load the module of the connection manager, which it does when it is asked for
// the character device. The answer does not matter, because the next open shows it.
func loadModule() { _, _ = netlink(nldevGetChardev, attrChardevType, []byte("rdma_cm\x00")) }

// netlink asks RDMA's netlink with one attribute, and returns the attributes of the answer. It does not
// wait, because the kernel has answered when the request is sent.
func netlink(typ, attr uint16, value []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // it is only read, so nothing is lost with it
	if err := unix.Sendto(fd, netlinkRequest(typ, attr, value), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	b := make([]byte, os.Getpagesize())
	n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, err
	}
	return netlinkAnswer(b[:n], typ)
}

// netlinkRequest is a struct nlmsghdr and one struct nlattr.
func netlinkRequest(typ, attr uint16, value []byte) []byte {
	size := unix.NLMSG_HDRLEN + unix.SizeofNlAttr + len(value)
	b := make([]byte, 0, size+3)
	b = order.AppendUint32(b, uint32(size))
	b = order.AppendUint16(b, typ)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST)
	b = order.AppendUint64(b, 0) // sequence and port: one request, and the kernel knows the sender
	b = order.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = order.AppendUint16(b, attr)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// netlinkAnswer returns the attributes of the message of a type, or the error that came instead.
func netlinkAnswer(b []byte, typ uint16) ([]byte, error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if m.Header.Type == typ {
			return m.Data, nil
		}
		if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
			if code := int32(order.Uint32(m.Data)); code < 0 {
				return nil, syscall.Errno(-code)
			}
		}
	}
	return nil, syscall.ENOMSG
}

// attrString returns the string of the first attribute of a type.
func attrString(b []byte, typ uint16) (string, error) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(order.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		if order.Uint16(b[2:])&attrTypeMask == typ {
			return strings.TrimRight(string(b[unix.SizeofNlAttr:size]), "\x00"), nil
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return "", syscall.ENOMSG
}
