package xfer

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutSync calls f on a thread whose calls of fsync fail with EIO, except those for the descriptor spared. The thread ends
// with f, because the kernel has no way to take the filter away (seccomp(2)).
func withoutSync(t *testing.T, spared int, f func()) {
	t.Helper()
	const (
		number = 0  // offset of the system call's number in struct seccomp_data
		first  = 16 // offset of the first argument, of which 32 bits are enough for a descriptor
	)
	low := uint32(first)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 { // big endian
		low += 4
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: low},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(spared), Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // until the goroutine ends, which ends the thread
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			done <- err
			return
		}
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, reflect.ValueOf(program).Pointer())
		runtime.KeepAlive(program)
		if errno != 0 {
			done <- errno
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Skip("this system takes no filter of system calls:", err)
	}
}

// TestDirSync checks the order in which Sync makes a file last: first its data, then its name, then the directory. If the data
// cannot reach the disk, the old file stays; if the directory cannot, Commit says so. Without Sync nothing is forced to the disk.
func TestDirSync(t *testing.T) {
	for _, c := range []struct {
		name  string
		sync  bool
		spare bool // the file can be synced
		want  string
		text  string // of the error, with Sync
	}{
		{"data", true, false, "old", `cannot sync "f"`},
		{"directory", true, true, "new", "may not outlast a crash of the machine"},
		{"off", false, false, "new", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := t.TempDir()
			if err := os.WriteFile(filepath.Join(path, "f"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			d := must(OpenDir(t.Context(), path, DirOptions{Overwrite: true, Sync: c.sync}))(t)
			defer d.Close()
			below := must(os.Open(path))(t) // so that the directory's descriptor will be another than the file's, which is closed by then
			f := must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 3))(t)
			if err := below.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("new"), 0); err != nil {
				t.Fatal(err)
			}
			spared := -1
			if c.spare {
				spared = int(f.(*dirFile).Fd())
			}
			var err error
			withoutSync(t, spared, func() { err = f.Commit() })
			if text := fmt.Sprint(err); c.text == "" && err != nil || !strings.Contains(text, c.text) {
				t.Errorf("Commit says %q, want %q", text, c.text)
			}
			if err != nil {
				if err := f.Discard(); err != nil {
					t.Error(err)
				}
			}
			if got := must(os.ReadFile(filepath.Join(path, "f")))(t); string(got) != c.want {
				t.Errorf("the file holds %q, want %q", got, c.want)
			}
		})
	}
}
