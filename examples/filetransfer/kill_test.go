//go:build unix

package filetransfer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cinnabar/internal/testproc"
)

// slowClient is a client whose input is a pipe: it goes on as far as the test feeds it.
type slowClient struct {
	*testproc.Process
	input *os.File
}

func startSlowClient(t *testing.T, addr string) *slowClient {
	t.Helper()
	path := filepath.Join(t.TempDir(), "slow")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &slowClient{Process: testproc.Start(t, command("client", addr, path))}
	var err error
	if c.input, err = os.OpenFile(path, os.O_WRONLY, 0); err != nil { // returns when the client has opened it
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.input.Close() })
	return c
}

// feed lets the client read n bytes.
func (c *slowClient) feed(t *testing.T, n int) {
	t.Helper()
	if _, err := c.input.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// midway are the points of a transfer up to which a test lets it come.
var midway = map[string]func(t *testing.T, s *serverProcess, c *slowClient){
	"at once": func(*testing.T, *serverProcess, *slowClient) {},
	"file open": func(t *testing.T, s *serverProcess, _ *slowClient) {
		await(s.Stdout, "opening file slow")
	},
	"first READY": func(t *testing.T, _ *serverProcess, c *slowClient) {
		await(c.Stdout, "received READY")
	},
	"half a chunk": func(t *testing.T, _ *serverProcess, c *slowClient) {
		await(c.Stdout, "received READY")
		c.feed(t, BufferSize/2)
	},
	"a chunk": func(t *testing.T, s *serverProcess, c *slowClient) {
		c.feed(t, BufferSize)
		await(s.Stdout, "received 10485760 bytes.")
	},
	"second READY": func(t *testing.T, _ *serverProcess, c *slowClient) {
		c.feed(t, BufferSize)
		await(c.Stdout, "received READY")
		await(c.Stdout, "received READY")
	},
	"some chunks": func(t *testing.T, s *serverProcess, c *slowClient) {
		for range 3 {
			c.feed(t, BufferSize)
			await(s.Stdout, "received 10485760 bytes.")
		}
	},
}

// A client that dies leaves nothing behind, and the server serves the next one.
// parity: B41
func TestKilledClients(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	n := 0
	for point, come := range midway {
		t.Run(point, func(t *testing.T) {
			c := startSlowClient(t, s.addr)
			come(t, s, c)
			c.Kill()
			n++
			next := input(t, fmt.Sprint("next", n), 1000)
			s.send(t, next)
			if point != "at once" { // it may have died before it had connected
				await(s.Stderr, `file "slow"`)
			}
			if files := s.files(t); strings.Contains(files, "slow") {
				t.Errorf("left behind: %s", files)
			}
		})
	}
}

// ^C ends the server in order: no half files, and clients that know.
// parity: B01
func TestInterruptedServer(t *testing.T) {
	for point, come := range midway {
		t.Run(point, func(t *testing.T) {
			s := startServer(t, "127.0.0.1")
			c := startSlowClient(t, s.addr)
			come(t, s, c)
			s.interrupt(t)
			_ = c.input.Close() // the client may be reading
			if err := c.Wait(); err == nil || !strings.HasPrefix(c.Stderr.String(), "error: ") {
				t.Errorf("the client ended with %v: %s", err, c.Stderr)
			}
			if files := s.files(t); files != "" {
				t.Errorf("left behind: %s", files)
			}
		})
	}
}

// The client of a server that dies says so and fails.
func TestKilledServer(t *testing.T) {
	for point, come := range midway {
		t.Run(point, func(t *testing.T) {
			s := startServer(t, "127.0.0.1")
			c := startSlowClient(t, s.addr)
			come(t, s, c)
			s.Kill()
			_ = c.input.Close()
			if err := c.Wait(); err == nil || !strings.HasPrefix(c.Stderr.String(), "error: ") || strings.Contains(c.Stdout.String(), "DONE") {
				t.Errorf("the client ended with %v: %s%s", err, c.Stdout, c.Stderr)
			}
		})
	}
}

// After a transfer the server has closed the file.
// parity: B12
func TestFilesAreClosed(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	fds := fmt.Sprintf("/proc/%d/fd", s.Pid())
	if _, err := os.Stat(fds); err != nil {
		t.Skipf("this system does not tell which files a process has open: %v", err)
	}
	for i := range 3 {
		s.send(t, input(t, fmt.Sprint("file", i), 1000))
	}
	entries, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil && strings.HasPrefix(to, s.dir+"/") {
			t.Errorf("%s is still open", to)
		}
	}
}
