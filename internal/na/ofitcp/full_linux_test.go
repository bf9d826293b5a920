package ofitcp

import (
	"os"
	"path/filepath"
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
