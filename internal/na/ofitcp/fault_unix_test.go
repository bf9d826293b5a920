//go:build unix

package ofitcp

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
	"cinnabar/internal/sockio"
)

// mapped returns a mapping of a file of its own, and a function that truncates the file.
func mapped(t *testing.T, size int) (b []byte, truncate func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err = syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	return b, func() {
		t.Helper()
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAccessToTruncatedFile: a peer's access to exposed memory whose file was truncated fails with its connection. The
// process goes on, and so do other connections.
func TestAccessToTruncatedFile(t *testing.T) {
	const size = 1 << 20
	for _, n := range []uint64{1, 100, 10_000, 500_000} {
		for _, put := range []bool{true, false} {
			e := openEcho(t, Config{})
			b, truncate := mapped(t, size)
			m, h := expose(t, e, e, b, na.ReadWrite)
			key := h.(*remote).key
			bystander := newRaw(t)
			other, _ := bystander.dial(e, 1)
			r := newRaw(t)
			c, _ := r.dial(e, 1)
			truncate()
			v := []iov{{addr: 4096, len: n, key: key}}
			if put {
				c.write(append(appendWrite(nil, v, n), make([]byte, n)...))
			} else {
				c.write(appendReadReq(nil, v))
			}
			if got := c.closed(); len(got) > baseLen {
				t.Errorf("%d bytes, write %t: received % x", n, put, got[:baseLen])
			}
			bystander.ping(other, 2)
			if k := counted(e, audit.Denied, causeFault); k != 1 {
				t.Errorf("%d bytes, write %t: %d faults are counted, want 1", n, put, k)
			}
			m.Close() // waits for nothing
		}
	}
}

// TestTransferToTruncatedFile: local memory of a transfer whose file was truncated fails the transfer. A
// transfer that reads goes alone; others over the connection go on.
func TestTransferToTruncatedFile(t *testing.T) {
	a, b := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, b, a)
	for _, n := range []int{1, 100, 10_000, 500_000} {
		_, from := expose(t, a, b, bytes.Repeat([]byte{1}, n), na.ReadWrite)
		local, truncate := mapped(t, n)
		truncate()
		whole := make([]byte, n)
		_ = newClientGet(t, b, to, from, n)
		c := b.peer(a.self).conn.Load()
		op, after := newCall(), newCall()
		b.Get(&op.op, to, []na.Fragment{{Remote: from, Local: local}})
		b.Get(&after.op, to, []na.Fragment{{Remote: from, Local: whole}})
		if err := op.wait(t, b, to); err == nil {
			t.Errorf("get of %d bytes to memory that is gone succeeds", n)
		}
		if err := after.wait(t, b, to); sockio.Direct && (err != nil || whole[n-1] != 1 || c.dead.Load()) {
			t.Errorf("get of %d bytes behind one to memory that is gone: %v, connection lost %t", n, err, c.dead.Load())
		}
		b.Put(&op.op, to, []na.Fragment{{Remote: from, Local: local}})
		if err := op.wait(t, b, to); err == nil {
			t.Errorf("put of %d bytes from memory that is gone succeeds", n)
		}
	}
}
