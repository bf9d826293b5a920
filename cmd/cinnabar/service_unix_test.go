//go:build unix

package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/tlstest"
)

// manager is a service manager: its notify socket, and the processes that it starts.
type manager struct {
	t      *testing.T
	notify *net.UnixConn
	path   string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "sd") //nolint:usetesting // the folder of TempDir has a path that is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, path: filepath.Join(dir, "notify")}
	if m.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	if err := m.notify.SetReadDeadline(time.Now().Add(clitest.ProcessLimit)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.notify.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

// service is a process that a manager has started.
type service struct {
	*exec.Cmd
	stderr bytes.Buffer
}

// start starts a command with sockets, and with a watchdog if usec is not empty. The shell sets the process id, which it keeps in exec.
func (m *manager) start(usec string, sockets []*os.File, args ...string) *service {
	m.t.Helper()
	c := clitest.Exec(m.t, args...)
	self := c.Path
	c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `export LISTEN_PID=$$ WATCHDOG_PID=$$; exec "$0" "$@"`, self}, args...)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC="+usec, "GORACE=atexit_sleep_ms=0")
	if len(sockets) > 0 {
		c.ExtraFiles = sockets
		c.Env = append(c.Env, "LISTEN_FDS="+string(rune('0'+len(sockets))))
	}
	s := &service{Cmd: c}
	c.Stderr = &s.stderr
	if err := c.Start(); err != nil {
		m.t.Fatal(err)
	}
	return s
}

// await reads messages until one begins with text, and returns it.
func (m *manager) await(text string) string {
	m.t.Helper()
	b := make([]byte, 8192)
	for {
		n, err := m.notify.Read(b)
		if err != nil {
			m.t.Fatalf("no message %q: %v", text, err)
		}
		if got := string(b[:n]); strings.HasPrefix(got, text) {
			return got
		}
	}
}

// activation opens a socket of a manager, and returns its descriptor and address.
func activation(t *testing.T) (*os.File, string) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := l.Close(); err != nil { // f keeps the socket
		t.Fatal(err)
	}
	return f, l.Addr().String()
}

// TestServices starts each command that serves as systemd does: with a socket, and with a watchdog. It
// reports the address of the socket, serves it, is alive twice, and reports its end at SIGTERM.
func TestServices(t *testing.T) {
	for _, tt := range []struct {
		args, usec string
		status     string // before the address
	}{
		{"perf serve ofi+tcp", "200000", "serving at ofi+tcp://"},
		{"mem serve ofi+tcp", "200000", "lending memory at ofi+tcp://"},
		{"recv --dir DIR", "200000", "waiting for files at "},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			m := newManager(t)
			socket, address := activation(t)
			s := m.start(tt.usec, []*os.File{socket}, strings.Fields(strings.ReplaceAll(tt.args, "DIR", t.TempDir()))...)
			if got, want := m.await("READY=1"), "READY=1\nSTATUS="+tt.status+address; got != want {
				t.Errorf("message %q, want %q", got, want)
			}
			m.await("WATCHDOG=1")
			m.await("WATCHDOG=1")
			if !strings.HasPrefix(tt.args, "recv") {
				clitest.WantRun(t, cli.ExitOK, []string{"ping", "--count", "1", "ofi+tcp://" + address})
			} else {
				file := clitest.WriteTemp(t, "file", []byte("data"))
				clitest.WantRun(t, cli.ExitOK, []string{"send", file, address})
			}
			if err := s.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			m.await("STOPPING=1")
			if err := s.Wait(); err != nil {
				t.Errorf("%v: %s", err, &s.stderr)
			}
		})
	}
}

// TestWatchdogOfSecuredReceiver serves the watchdog by requests over TLS and with a token. A certificate that does not have the address of the receiver is
// an answer too.
func TestWatchdogOfSecuredReceiver(t *testing.T) {
	ca := tlstest.NewCA(t)
	for name, host := range map[string]string{"address": "127.0.0.1", "another name": "files.example"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, key, roots := ca.Write(t, t.TempDir(), ca.Issue(t, tlstest.Certificate{Name: "local", Hosts: []string{host}}))
			m := newManager(t)
			socket, _ := activation(t)
			s := m.start("2000000", []*os.File{socket}, "recv", "--dir", t.TempDir(), "--token-file", writeToken(t), "--tls-cert", cert, "--tls-key", key, "--tls-ca", roots)
			m.await("WATCHDOG=1")
			m.await("WATCHDOG=1")
			if err := s.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := s.Wait(); err != nil || s.stderr.Len() > 0 {
				t.Errorf("%v: %s", err, &s.stderr)
			}
		})
	}
}

// TestServicesRefused starts commands with sockets and variables that they cannot use.
func TestServicesRefused(t *testing.T) {
	for _, tt := range []struct {
		args, usec string
		sockets    int
		want       string
	}{
		{"perf serve ofi+tcp://127.0.0.1:1", "", 1, "Listener is at 127.0.0.1:"},
		{"perf serve ofi+tcp --classes 2", "", 1, "has opened 1 sockets, and the command listens at 2 addresses"},
		{"perf serve ofi+tcp", "soon", 0, "WATCHDOG_USEC"},
		{"mem serve na+sm", "", 1, "Listener is set"},
		{"mem serve ofi+tcp", "", 2, "has opened 2 sockets"},
		{"recv --listen 127.0.0.1:1", "", 1, "--listen 127.0.0.1:1 was given with a socket"},
		{"recv --device other0", "", 1, "--device other0 was given with a socket"},
		{"recv --listen 127.0.0.1:0 --max-memory 4KiB", "1000000", 0, "is too little for"},
		{"recv --listen 127.0.0.1:0 --once", "1000000", 0, "remove WatchdogSec="},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			var sockets []*os.File
			for range tt.sockets {
				f, _ := activation(t)
				sockets = append(sockets, f)
			}
			s := newManager(t).start(tt.usec, sockets, strings.Fields(tt.args)...)
			if err := s.Wait(); err == nil || !strings.Contains(s.stderr.String(), tt.want) {
				t.Errorf("%v, %q, want %q", err, &s.stderr, tt.want)
			}
		})
	}
}

// TestLostManager starts a server with a notify socket that no process reads. It prints that, and serves.
func TestLostManager(t *testing.T) {
	m := newManager(t)
	if err := m.notify.Close(); err != nil {
		t.Fatal(err)
	}
	socket, address := activation(t)
	s := m.start("", []*os.File{socket}, "perf", "serve", "--once", "ofi+tcp")
	clitest.WantRun(t, cli.ExitOK, []string{"perf", "rate", "--size", "8", "--count", "1", "ofi+tcp://" + address})
	if err := s.Wait(); err != nil || !strings.Contains(s.stderr.String(), "warning: notify the service manager") {
		t.Errorf("%v: %s", err, &s.stderr)
	}
}

// TestTwoClasses passes two sockets to a server with two addresses.
func TestTwoClasses(t *testing.T) {
	m := newManager(t)
	one, first := activation(t)
	two, second := activation(t)
	s := m.start("", []*os.File{one, two}, "perf", "serve", "ofi+tcp", "--classes", "2")
	if got, want := m.await("READY=1"), "READY=1\nSTATUS=serving at ofi+tcp://"+first+" ofi+tcp://"+second; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("%v: %s", err, &s.stderr)
	}
}

// units is the folder of the unit files.
var units = filepath.Join("..", "..", "contrib", "systemd")

// unitCommand is the path of the command in the unit files.
const unitCommand = "/usr/bin/cinnabar"

// TestUnits lets systemd look for mistakes in the unit files. It wants the program of a unit to exist, so the units name that of the test.
func TestUnits(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(units, "*.*"))
	if err != nil || len(files) != 5 {
		t.Fatalf("%q, %v", files, err)
	}
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(copied, bytes.ReplaceAll(text, []byte(unitCommand), []byte(self)), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, copied)
	}
	out, err := exec.CommandContext(t.Context(), verify, args...).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("cinnabar")) { // other lines are about units of the machine
		t.Errorf("%v: %s", err, out)
	}
}

// unitValues returns the settings of a unit file.
func unitValues(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			values[key] = value
		}
	}
	return values
}

// TestUnitCommands starts the command of each service as its unit does: with a socket if there is a socket unit, with its watchdog, and for an
// instance at a free port. It becomes ready, and ends with success.
// parity: P08
func TestUnitCommands(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(units, "*.service"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			values := unitValues(t, file)
			if values["Type"] != "notify" || values["SuccessExitStatus"] != "143" {
				t.Errorf("Type=%s, SuccessExitStatus=%s", values["Type"], values["SuccessExitStatus"])
			}
			line := strings.NewReplacer("%i", "127.0.0.1:0", "%S", t.TempDir()).Replace(values["ExecStart"])
			args := strings.Fields(line)
			if args[0] != unitCommand || strings.Contains(line, "%") {
				t.Fatalf("ExecStart=%s", line)
			}
			if state := values["StateDirectory"]; state != "" { // systemd makes it
				if err := os.Mkdir(args[len(args)-2], 0o700); err != nil || filepath.Base(args[len(args)-2]) != state {
					t.Fatalf("StateDirectory=%s, %v", state, err)
				}
			}
			usec := values["WatchdogSec"]
			if usec != "" {
				usec += "000000"
			}
			var sockets []*os.File
			if _, err := os.Stat(strings.TrimSuffix(file, ".service") + ".socket"); err == nil {
				f, _ := activation(t)
				sockets = append(sockets, f)
			}
			m := newManager(t)
			s := m.start(usec, sockets, args[1:]...)
			m.await("READY=1")
			if usec != "" {
				m.await("WATCHDOG=1")
			}
			if err := s.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			m.await("STOPPING=1")
			if err := s.Wait(); err != nil {
				t.Errorf("%v: %s", err, &s.stderr)
			}
		})
	}
}
