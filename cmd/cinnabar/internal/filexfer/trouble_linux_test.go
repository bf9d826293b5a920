package filexfer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// troubledRecv is a recv with a file system of its own.
type troubledRecv struct {
	*recvProcess
	t *testing.T
}

// startTroubled starts a recv on a file system of so many bytes.
func startTroubled(t *testing.T, size int) *troubledRecv {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("this user cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := &troubledRecv{t: t, recvProcess: &recvProcess{dir: dir}}
	r.start()
	return r
}

// start starts the recv of the directory.
func (r *troubledRecv) start() {
	r.t.Helper()
	r.Process = clitest.Start(r.t, "recv", "--listen", "127.0.0.1:0", "--dir", r.dir)
	r.addr = r.Stdout.Expect(`^waiting for files at (\S+),`)[1]
}

// remount changes the file system.
func (r *troubledRecv) remount(flags uintptr, options string) {
	r.t.Helper()
	if err := unix.Mount("none", r.dir, "tmpfs", unix.MS_REMOUNT|flags, options); err != nil {
		r.t.Fatal(err)
	}
}

// cutOne sends a part of a file, and kills the sender.
func (r *troubledRecv) cutOne(path string) {
	r.t.Helper()
	client := clitest.Start(r.t, "send", "--json", "--chunk", "64k", "--limit", "24MiB/s", path, r.addr)
	client.Stdout.Expect(`"event":"progress".*"bytes":(9|[1-9]\d)\d{6},`)
	client.Kill()
	_ = client.Wait() // it was killed
	r.Stderr.Expect(`connection failed`)
}

// wantRefused sends a file, and checks the reason.
func (r *troubledRecv) wantRefused(path string, reasons ...string) {
	r.t.Helper()
	code, client := clitest.RunProcess(r.t, "send", path, r.addr)
	for _, reason := range reasons {
		if code != cli.ExitFailure || !strings.Contains(client.Stderr.String(), reason) {
			r.t.Errorf("exit code %d, want %q: %s", code, reason, client.Stderr)
		}
	}
	if _, err := os.Lstat(filepath.Join(r.dir, filepath.Base(path))); err == nil {
		r.t.Error("the file has its name")
	}
}

// A receiver that is full, read-only, killed or out of descriptors gives the sender the reason, and a second try goes on where the transfer stopped.
//
// parity: X02
func TestRecvInTrouble(t *testing.T) {
	const size = 40 << 20
	path := randomFiles(t, size)[0]
	for name, c := range map[string]struct {
		room    int // bytes of the receiver's file system
		trouble func(r *troubledRecv)
	}{
		"full": {24 << 20, func(r *troubledRecv) {
			r.wantRefused(path, "the disk of the receiver's directory is full", "no space left on device", "the receiver needs room")
			r.remount(0, "size=100m")
		}},
		"read-only": {2 * size, func(r *troubledRecv) {
			r.cutOne(path)
			r.remount(unix.MS_RDONLY, "")
			r.wantRefused(path, "read-only file system", "the right to write")
			r.remount(0, "")
		}},
		"killed": {2 * size, func(r *troubledRecv) {
			client := clitest.Start(t, "send", "--json", "--chunk", "64k", "--limit", "24MiB/s", path, r.addr)
			client.Stdout.Expect(`"event":"progress".*"bytes":(9|[1-9]\d)\d{6},`)
			r.Kill()
			_ = r.Wait() // it was killed
			if code := client.ExitCode(); code != cli.ExitFailure || !strings.Contains(client.Stdout.String(), `"code":"connection failed"`) {
				t.Errorf("exit code %d: %s%s", code, client.Stdout, client.Stderr)
			}
			r.start()
		}},
		"out of descriptors": {2 * size, func(r *troubledRecv) {
			// before the first connection, because descriptors of one that has ended may be closed at any time after it
			open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.Pid()))
			if err != nil {
				t.Fatal(err)
			}
			r.cutOne(path)
			var all, old unix.Rlimit
			limit := func(now, before *unix.Rlimit) {
				if err := unix.Prlimit(r.Pid(), unix.RLIMIT_NOFILE, now, before); err != nil {
					t.Fatal(err)
				}
			}
			limit(nil, &all)
			said := false
			for more := range 16 { // the connection takes some, and the file one
				limit(&unix.Rlimit{Cur: uint64(len(open) + more), Max: all.Max}, &old)
				code, client := clitest.RunProcess(t, "send", "--timeout", "1s", path, r.addr)
				if code == 0 {
					t.Fatalf("with %d descriptors beside those of a receiver that waits it works, and no sender was given the reason before: %s", more, client.Stdout)
				}
				if said = strings.Contains(client.Stderr.String(), "too many open files"); said {
					break
				}
			}
			if !said {
				t.Error("no sender was given the reason")
			}
			limit(&all, &old)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := startTroubled(t, c.room)
			c.trouble(r)
			code, client := clitest.RunProcess(t, "send", "--json", path, r.addr)
			var e transferEvent
			lines := strings.Split(strings.TrimSpace(client.Stdout.String()), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); code != 0 || err != nil || e.Kept < 4<<20 {
				t.Errorf("exit code %d, %d bytes were there, %v: %s%s", code, e.Kept, err, client.Stdout, client.Stderr)
			}
			r.sameFile(t, path)
			r.interrupt(t)
		})
	}
}

// A get of which the disk is full or read-only, or of which the server is killed, says the reason, and so does the server. The same get goes on where it stopped.
//
// parity: X02
func TestGetInTrouble(t *testing.T) {
	const size = 40 << 20
	path := randomFiles(t, size)[0]
	name := filepath.Base(path)
	for of, c := range map[string]struct {
		room           int // bytes of the puller's file system
		lanes, reason  string
		readOnly, dies bool
	}{
		"full":             {room: 24 << 20, lanes: "1", reason: "no space left on device"},
		"full, two lanes":  {room: 36 << 20, lanes: "2", reason: "no space left on device"},
		"read-only":        {room: 2 * size, lanes: "1", reason: "read-only file system", readOnly: true},
		"the server dies":  {room: 2 * size, lanes: "1", reason: "connection failed", dies: true},
		"it dies, 2 lanes": {room: 2 * size, lanes: "2", reason: "connection failed", dies: true},
	} {
		t.Run(of, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", c.room)); err != nil {
				t.Skipf("this user cannot mount: %v", err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			remount := func(flags uintptr, options string) {
				t.Helper()
				if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|flags, options); err != nil {
					t.Fatal(err)
				}
			}
			server, addr := startServer(t, filepath.Dir(path))
			args := func(more ...string) []string {
				return append([]string{"get", addr, name, "--json", "--dir", dir}, more...)
			}
			if c.readOnly || c.dies {
				client := clitest.Start(t, args("--lanes", c.lanes, "--limit", "8MiB/s")...)
				client.Stdout.Expect(`"event":"progress".*"bytes":(2[4-9]|3\d)\d{6},`)
				if c.readOnly {
					client.Kill()
					_ = client.Wait() // it was killed
					server.Stderr.Expect(`connection failed`)
					remount(unix.MS_RDONLY, "")
				} else {
					server.Kill()
					_ = server.Wait() // it was killed
					if code := client.ExitCode(); code != cli.ExitFailure || !strings.Contains(client.Stderr.String(), c.reason) {
						t.Errorf("exit code %d: %s", code, client.Stderr)
					}
					_, addr = startServer(t, filepath.Dir(path))
				}
			}
			if !c.dies {
				code, client := clitest.RunProcess(t, args("--lanes", c.lanes)...)
				if code != cli.ExitFailure || !strings.Contains(client.Stderr.String(), c.reason) {
					t.Errorf("exit code %d, want %q: %s", code, c.reason, client.Stderr)
				}
				server.Stderr.Expect(c.reason)
				if c.readOnly {
					remount(0, "")
				} else {
					remount(0, "size=100m")
				}
			}
			code, again := clitest.RunProcess(t, args()...)
			var e transferEvent
			lines := strings.Split(strings.TrimSpace(again.Stdout.String()), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); code != 0 || err != nil || e.Kept < 4<<20 {
				t.Errorf("exit code %d, %d bytes were here, %v: %s%s", code, e.Kept, err, again.Stdout, again.Stderr)
			}
			got, err := fileSum(filepath.Join(dir, name))
			if want, werr := fileSum(path); err != nil || werr != nil || got != want {
				t.Errorf("the file differs: %v, %v", err, werr)
			}
			if list := filesBelow(t, dir); len(list) != 1 {
				t.Errorf("in the directory: %q", list)
			}
		})
	}
}
