package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// manager listens on a notify socket in the place of a service manager.
func manager(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("this system has no datagrams of Unix sockets")
	}
	dir, err := os.MkdirTemp("", "sd") //nolint:usetesting // the folder of TempDir has a path that is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "notify")
}

// received returns the next message at a notify socket.
func received(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	b := make([]byte, 2*maxNotify)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// TestNotify sends states to a socket in a folder, and to an abstract one.
func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if sent, err := Notify(t.Context(), Ready); sent || err != nil {
		t.Errorf("without a manager: %v, %v", sent, err)
	}
	paths := []string{socketPath(t)}
	if runtime.GOOS == "linux" {
		paths = append(paths, "@cinnabar-test-"+strconv.Itoa(os.Getpid()))
	}
	for _, path := range paths {
		c := manager(t, path)
		if sent, err := Notify(t.Context(), Ready, Status("one\ntwo\r\x00three")); !sent || err != nil {
			t.Fatalf("%s: %v, %v", path, sent, err)
		}
		if got := received(t, c); got != "READY=1\nSTATUS=one two  three" {
			t.Errorf("%s: received %q", path, got)
		}
	}
}

// TestNotifyFails passes sockets that Notify cannot use.
func TestNotifyFails(t *testing.T) {
	gone := socketPath(t)
	for path, want := range map[string]string{
		"relative":                        "neither absolute",
		"/" + strings.Repeat("long/", 25): "126 bytes; at most 103",
		gone:                              gone,
	} {
		t.Setenv("NOTIFY_SOCKET", path)
		if sent, err := Notify(t.Context(), Ready); !sent || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", path, sent, err, want)
		}
	}
	manager(t, gone)
	if _, err := Notify(t.Context(), strings.Repeat("x", maxNotify+1)); err == nil || !strings.Contains(err.Error(), "at most 4096") {
		t.Errorf("a long message: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Notify(ended, Ready); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestLongStatus cuts a text between two characters.
func TestLongStatus(t *testing.T) {
	if got := Status(strings.Repeat("x", maxStatus)); got != "STATUS="+strings.Repeat("x", maxStatus) {
		t.Errorf("%d bytes", len(got))
	}
	if got := Status("x" + strings.Repeat("µ", maxStatus)); got != "STATUS=x"+strings.Repeat("µ", maxStatus/2-1)+"..." {
		t.Errorf("%q", got)
	}
}

// TestNotifySilentManager sends to a manager that reads nothing. The socket of the manager is full after some messages, and the context ends the next one.
func TestNotifySilentManager(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux does a sender wait for room in the socket of the receiver")
	}
	manager(t, socketPath(t))
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := Notify(ctx, Ready)
		cancel()
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			return
		}
	}
}

func TestWatchdogTime(t *testing.T) {
	self, other := strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid())
	for _, tt := range []struct {
		usec, pid string
		want      time.Duration
		err       string
	}{
		{"", "", 0, ""},
		{"", self, 0, ""},
		{"3000000", "", 3 * time.Second, ""},
		{"3000000", self, 3 * time.Second, ""},
		{"3000000", other, 0, ""},
		{"1", self, time.Microsecond, ""},
		{"0", self, 0, "WATCHDOG_USEC"},
		{"-5", self, 0, "WATCHDOG_USEC"},
		{"3s", self, 0, "WATCHDOG_USEC"},
		{"18446744073709551615", self, 0, "WATCHDOG_USEC"},
		{"3000000", "x", 0, "WATCHDOG_PID"},
	} {
		t.Setenv("WATCHDOG_USEC", tt.usec)
		t.Setenv("WATCHDOG_PID", tt.pid)
		got, err := WatchdogTime()
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q, %q: %v, %v; want %v, %q", tt.usec, tt.pid, got, err, tt.want, tt.err)
		}
	}
}

// TestWatchdog reports the service alive after each check that succeeds, and only then.
func TestWatchdog(t *testing.T) {
	c := manager(t, socketPath(t))
	t.Setenv("WATCHDOG_PID", "")
	t.Setenv("WATCHDOG_USEC", "2000")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := errors.New("the engine hangs")
	results := []error{nil, hung, hung, nil, hung}
	var failed []error
	checks := 0
	err := Watchdog(ctx, func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a check has no deadline")
		}
		n := checks
		checks++
		if n == len(results) {
			cancel()
			return nil // a check that succeeds at the end sends nothing either
		}
		if _, err := Notify(t.Context(), Status("check "+strconv.Itoa(n))); err != nil {
			t.Error(err)
		}
		return results[n]
	}, func(err error) { failed = append(failed, err) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Notify(t.Context(), Stopping); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"STATUS=check 0", alive, "STATUS=check 1", "STATUS=check 2", "STATUS=check 3", alive, "STATUS=check 4", Stopping} {
		if got := received(t, c); got != want {
			t.Fatalf("received %q, want %q", got, want)
		}
	}
	if len(failed) != 3 || !errors.Is(failed[0], hung) {
		t.Errorf("failures: %v", failed)
	}
}

// TestNoWatchdog returns at once.
func TestNoWatchdog(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "")
	if err := Watchdog(t.Context(), func(context.Context) error { t.Error("a check is made"); return nil }, nil); err != nil {
		t.Error(err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if err := Watchdog(t.Context(), nil, nil); err == nil {
		t.Error("a watchdog with a wrong time is accepted")
	}
}
