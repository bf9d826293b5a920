package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// roleEnv names the role of a process of the test binary that has descriptors.
const roleEnv = "CINNABAR_TEST_SYSTEMD_ROLE"

// tooMany is the role that calls takeTooMany; others call takeAndPrint.
const tooMany = "too many"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		take := takeAndPrint
		if role == tooMany {
			take = takeTooMany
		}
		if err := take(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// takeTooMany calls Listeners with a LISTEN_FDS that also names a listener and a file of this process, and prints the error. The descriptors stay open.
func takeTooMany() error {
	own, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file, err := os.Open(os.Args[0])
	if err != nil {
		return err
	}
	if err := os.Setenv("LISTEN_FDS", strconv.Itoa(int(file.Fd())-firstDescriptor+1)); err != nil {
		return err
	}
	list, err := Listeners()
	if err == nil || list != nil {
		return fmt.Errorf("Listeners returns %d sockets: %w", len(list), err)
	}
	fmt.Println(err)
	c, err := net.Dial("tcp4", own.Addr().String())
	if err != nil {
		return fmt.Errorf("the listener of the process is closed: %w", err)
	}
	accepted, err := own.Accept() // also the poller, whose descriptor was named, is open
	if err != nil {
		return fmt.Errorf("the listener of the process is closed: %w", err)
	}
	_, err = file.Stat()
	if err = errors.Join(err, c.Close(), accepted.Close(), own.Close(), file.Close()); err != nil {
		return err
	}
	if err := os.Setenv("LISTEN_FDS", "1"); err != nil {
		return err
	}
	list, err = Listeners() // the first call has not taken the socket that was passed
	if err != nil || len(list) != 1 {
		return fmt.Errorf("with the right LISTEN_FDS: %d sockets, %w", len(list), err)
	}
	return list[0].Close()
}

// takeAndPrint takes the sockets, accepts a connection of each, and prints names and addresses.
func takeAndPrint() error {
	list, err := Listeners()
	if err != nil {
		return err
	}
	for _, l := range list {
		fmt.Println(l.Name, l.Addr())
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte(l.Name)); err != nil {
			return err
		}
		if err := errors.Join(c.Close(), l.Close()); err != nil {
			return err
		}
	}
	if _, err := Listeners(); len(list) > 0 && !errors.Is(err, ErrTaken) {
		return fmt.Errorf("a second call returns %w", err)
	}
	return nil
}

// activated runs takeAndPrint in a process with files, as a service manager starts one: the shell sets LISTEN_PID to the id that it keeps in exec.
func activated(t *testing.T, names string, files ...*os.File) *exec.Cmd {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("this system passes no descriptors to processes")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `LISTEN_PID=$$ exec "$0"`, self)
	cmd.ExtraFiles = files
	cmd.Env = append(os.Environ(), roleEnv+"=1", "GORACE=atexit_sleep_ms=0", "LISTEN_FDS="+strconv.Itoa(len(files)), "LISTEN_FDNAMES="+names)
	return cmd
}

// fileOf returns the descriptor of a socket, which the end of the test closes.
func fileOf(t *testing.T, l interface {
	File() (*os.File, error)
	Close() error
}) *os.File {
	t.Helper()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); l.Close() })
	return f
}

// TestListeners passes a TCP socket and a Unix socket to a process, which serves a connection of each.
func TestListeners(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	path := socketPath(t)
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr strings.Builder
	cmd := activated(t, "rpc:control", fileOf(t, tcp), fileOf(t, unix))
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, l := range []net.Listener{tcp, unix} {
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		if name := string(b[:n]); err != nil || name != map[net.Listener]string{tcp: "rpc", unix: "control"}[l] {
			t.Errorf("%v answers %q, %v", l.Addr(), name, err)
		}
		c.Close()
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	if want := fmt.Sprintf("rpc %v\ncontrol %s\n", tcp.Addr(), path); out.String() != want {
		t.Errorf("printed %q, want %q", &out, want)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the socket of the manager was removed: %v", err)
	}
}

// TestListenersRefuse passes descriptors that do not listen for streams, and none.
func TestListenersRefuse(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cmd := activated(t, "", fileOf(t, tcp), file, fileOf(t, udp))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), `socket 2 of the service manager, "unknown": it does not listen`) || !strings.Contains(string(out), "socket 3") {
		t.Errorf("a file and a datagram socket: %v, %q", err, out)
	}
	if out, err := activated(t, "").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("no descriptors: %v, %q", err, out)
	}
	if list, err := Listeners(); len(list) > 0 || err != nil { // not from a service manager
		t.Errorf("without variables: %v, %v", list, err)
	}
}

// TestTooManyDescriptors checks that a LISTEN_FDS which is too large closes no descriptor of the process.
func TestTooManyDescriptors(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cmd := activated(t, "", fileOf(t, tcp))
	cmd.Env = append(cmd.Env, roleEnv+"="+tooMany)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), errNotPassed.Error()) || strings.Contains(string(out), "socket 1") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestDescriptorNames(t *testing.T) {
	for _, tt := range []struct {
		pid, count, names string
		want              []string
		err               string
	}{
		{"", "2", "", nil, ""},
		{"7", "", "", nil, ""},
		{"8", "2", "", nil, ""},
		{"7", "0", "", []string{}, ""},
		{"7", "2", "", []string{"unknown", "unknown"}, ""},
		{"7", "2", "a:b", []string{"a", "b"}, ""},
		{"7", "2", ":", []string{"", ""}, ""},
		{"7", "2", "a", nil, "1 names for 2"},
		{"7", "0", "a", nil, "1 names for 0"},
		{"7", "1025", "", nil, "from 0 to 1024"},
		{"7", "-1", "", nil, "LISTEN_FDS"},
		{"7", "99999999999999999999", "", nil, "LISTEN_FDS"},
		{"x", "1", "", nil, "LISTEN_PID"},
	} {
		got, err := descriptorNames(tt.pid, tt.count, tt.names, 7)
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q %q %q: %q, %v; want %q, %q", tt.pid, tt.count, tt.names, got, err, tt.want, tt.err)
		}
	}
}

// FuzzDescriptorNames bounds the number of names by the limit and by the count.
func FuzzDescriptorNames(f *testing.F) {
	f.Add("7", "2", "a:b")
	f.Add("7", "1024", "")
	f.Add("8", "1", "::")
	f.Fuzz(func(t *testing.T, pid, count, names string) {
		list, err := descriptorNames(pid, count, names, 7)
		if err != nil && list != nil {
			t.Errorf("%q beside %v", list, err)
		}
		if n, err := strconv.Atoi(count); len(list) > 0 && (err != nil || n != len(list) || n > maxDescriptors) {
			t.Errorf("%d names for %q", len(list), count)
		}
	})
}
