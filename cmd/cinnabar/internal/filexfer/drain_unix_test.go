//go:build unix

package filexfer

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/xfer"
)

// heldData is a file of which the second half cannot be read until the test closes release.
type heldData struct {
	half          int64
	held, release chan struct{}
}

func (d *heldData) ReadAt(b []byte, off int64) (int, error) {
	if off >= d.half {
		select {
		case <-d.held:
		default:
			close(d.held) // Sender reads with one goroutine
		}
		<-d.release
	}
	n := int(min(int64(len(b)), 2*d.half-off))
	clear(b[:n])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// TestRecvDrains ends recv in the middle of a file: SIGTERM lets the transfer come to its end and refuses further ones, and SIGINT cuts it short.
func TestRecvDrains(t *testing.T) {
	for _, tt := range []struct {
		signal os.Signal
		code   int
	}{{syscall.SIGTERM, cli.ExitOK}, {os.Interrupt, cli.ExitSignal + int(syscall.SIGINT)}} {
		t.Run(tt.signal.String(), func(t *testing.T) {
			notify := filepath.Join(shortDir(t), "notify")
			manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer manager.Close()
			t.Setenv("NOTIFY_SOCKET", notify)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			dir := t.TempDir()
			var o clitest.Output
			code := make(chan int, 1)
			go func() {
				code <- clitest.Run(ctx, []string{"recv", "--listen", "127.0.0.1:0", "--dir", dir}, o.Streams())
			}()
			at := netip.MustParseAddrPort(regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(message(t, manager, "READY=1")))
			dev, err := cli.OpenDevice(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			data := &heldData{half: 1 << 20, held: make(chan struct{}), release: make(chan struct{})}
			sent := make(chan error, 1)
			go func() {
				_, err := new(xfer.Sender).Send(t.Context(), dev, at, xfer.Source{Name: "file", Data: data, Size: 2 * data.half})
				sent <- err
			}()
			<-data.held
			cancel(cli.SignalError{Signal: tt.signal})
			message(t, manager, "STOPPING=1")
			if tt.code != cli.ExitOK {
				if got := <-code; got != tt.code {
					t.Errorf("exit code %d, want %d: %s", got, tt.code, &o.Err)
				}
				close(data.release)
				if err := <-sent; err == nil {
					t.Error("the file was sent")
				}
				return
			}
			close(data.release)
			if err := <-sent; err != nil {
				t.Error(err)
			}
			if got := <-code; got != tt.code {
				t.Errorf("exit code %d, want %d: %s", got, tt.code, &o.Err)
			}
			if info, err := os.Stat(filepath.Join(dir, "file")); err != nil || info.Size() != 2*data.half {
				t.Errorf("the file: %v, %v", info, err)
			}
		})
	}
}

// shortDir returns a folder with a path that is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sd") //nolint:usetesting // the folder of TempDir has a path that is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// message returns the next message at a notify socket, which begins with text.
func message(t *testing.T, c *net.UnixConn, text string) string {
	t.Helper()
	b := make([]byte, 8192)
	n, err := c.Read(b)
	if got := string(b[:n]); err != nil || !strings.HasPrefix(got, text) {
		t.Fatalf("message %q, %v, want %q", got, err, text)
	}
	return string(b[:n])
}
