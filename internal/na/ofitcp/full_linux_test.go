package ofitcp

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
)

// sparse returns a mapping of a file that is longer than its file system has room for.
func sparse(t *testing.T, size int) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	return b
}

// TestWriteToFullDisk: a peer's write to exposed memory whose file has no room on its file system fails with the peer's
// connection. The process goes on, and so do other connections, which write where there is room.
func TestWriteToFullDisk(t *testing.T) {
	const size = 1 << 20
	e := openEcho(t, Config{})
	b := sparse(t, size)
	m, h := expose(t, e, e, b, na.ReadWrite)
	key := h.(*remote).key
	bystander := newRaw(t)
	other, _ := bystander.dial(e, 1)
	write := func(c *rawConn, off, n uint64) {
		c.write(append(appendWrite(nil, []iov{{addr: off, len: n, key: key}}, n), make([]byte, n)...))
	}
	write(other, 0, 4096)
	if m, _ := other.message(); !m.ack {
		t.Errorf("a write where there is room: %+v", m)
	}
	bystander.ping(other, 1)
	for faults, n := range []uint64{200_000, 500_000} {
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		write(c, 4096, n)
		c.closed()
		if k := counted(e, audit.Denied, causeFault); k != uint64(faults+1) {
			t.Errorf("%d bytes: %d faults are counted, want %d", n, k, faults+1)
		}
	}
	for faults, n := range []uint64{1, 100, 10_000} { // nothing is free any more
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		write(c, size/2+uint64(faults)*65536, n)
		c.closed()
		if k := counted(e, audit.Denied, causeFault); k != uint64(faults+3) {
			t.Errorf("%d bytes on a full disk: %d faults are counted, want %d", n, k, faults+3)
		}
	}
	write(other, 0, 4096)
	if m, _ := other.message(); !m.ack {
		t.Errorf("a write where there is room: %+v", m)
	}
	bystander.ping(other, 2)
	m.Close() // waits for nothing
}

// TestShortReadAtFault: the kernel stores a part of a write, and ends the read before a page for which the file system has no room. All bytes have
// arrived by then, and the connection is in a crowd, so its reader parks and no further event wakes it. The reader must ask the kernel itself, and
// finds the fault.
func TestShortReadAtFault(t *testing.T) {
	const room, off, n = 64 << 10, 28 << 10, 50_000 // of the n bytes from off on, the last ones have no room
	e := openEcho(t, Config{})
	b := sparse(t, 1<<20)
	_, h := expose(t, e, e, b, na.ReadWrite)
	r, bystander := newRaw(t), newRaw(t)
	c, _ := r.dial(e, 1)
	other, _ := bystander.dial(e, 1)
	write := func(off, n uint64) {
		c.write(appendWrite(nil, []iov{{addr: off, len: n, key: h.(*remote).key}}, n))
		for ; n > 0; n -= min(n, 1000) { // in many segments, because the kernel stores no part of the one with the fault
			c.write(make([]byte, min(n, 1000)))
		}
	}
	write(0, room) // the pages have room, and the reader expects further large messages
	if m, _ := c.message(); !m.ack {
		t.Fatalf("a write where there is room: %+v", m)
	}
	reader := connTo(t, e, c)
	tag := uint32(0)
	until(t, "a crowd", func() bool {
		bystander.ping(other, tag)
		r.ping(c, tag)
		tag++
		return shared.crowded(reader)
	})
	until(t, "the read role", func() bool { return reader.role.held.CompareAndSwap(false, true) })
	write(off, n)
	until(t, "all bytes in the socket", func() bool { return sent(t, c) })
	reader.release()
	c.closed()
	if k := counted(e, audit.Denied, causeFault); k != 1 {
		t.Errorf("%d faults are counted, want 1", k)
	}
}

// sent reports whether the kernel of the peer has acknowledged all bytes that were written to c.
func sent(t *testing.T, c *rawConn) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	port := func(a net.Addr) string { return fmt.Sprintf(":%04X", a.(*net.TCPAddr).Port) }
	for line := range strings.Lines(string(b)) { // proc_net_tcp(5): number, local address, remote address, state, tx_queue:rx_queue
		if f := strings.Fields(line); strings.HasSuffix(f[1], port(c.LocalAddr())) && strings.HasSuffix(f[2], port(c.RemoteAddr())) {
			return strings.HasPrefix(f[4], "00000000:")
		}
	}
	t.Fatalf("%v is not in /proc/net/tcp", c.LocalAddr())
	return false
}
