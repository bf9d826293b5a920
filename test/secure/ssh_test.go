package secure

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"cinnabar/verbs/iwarp"
)

// TestPlainThroughSSH runs the plain protocols through a tunnel of ssh -L. The bytes between ssh and sshd are captured.
// parity: A01
func TestPlainThroughSSH(t *testing.T) {
	host := newSSHHost(t)
	for _, l := range layers {
		t.Run(l.name, func(t *testing.T) {
			dev := device(t, iwarp.Config{})
			var wire *man
			err := l.run(t, dev, device(t, iwarp.Config{}), func(a netip.AddrPort) (at netip.AddrPort) {
				at, wire = host.tunnel(t, a)
				return at
			})
			if err != nil {
				t.Error(err)
			}
			if n := wire.has(); n > 0 {
				t.Errorf("the capture has the secret %d times", n)
			}
		})
	}
	t.Run("ofi+tcp", func(t *testing.T) {
		var wire *man
		callOverTCP(t, func(a netip.AddrPort) (at netip.AddrPort) {
			at, wire = host.tunnel(t, a)
			return at
		})
		if n := wire.has(); n > 0 {
			t.Errorf("the capture has the secret %d times", n)
		}
	})
}

// sshHost is a host with an sshd of the test's own, which takes one key.
type sshHost struct {
	dir, sshd, ssh string
	port           *net.TCPListener
}

// newSSHHost makes the keys and starts to take connections, or skips the test where OpenSSH is not installed.
func newSSHHost(t *testing.T) *sshHost {
	t.Helper()
	h := &sshHost{dir: t.TempDir(), sshd: "/usr/sbin/sshd"} // not in the PATH of users
	if _, err := os.Stat(h.sshd); err != nil {
		t.Skipf("no sshd is installed (openssh-server of Debian): %v", err)
	}
	var err error
	if h.ssh, err = exec.LookPath("ssh"); err != nil {
		t.Skipf("no ssh is installed (openssh-client of Debian): %v", err)
	}
	if runtime.GOOS == "linux" && os.Geteuid() == 0 {
		must(t, os.MkdirAll("/run/sshd", 0o755)) // sshd of Debian needs it as root; its service makes it otherwise
	}
	for _, name := range []string{"host", "user"} {
		h.output(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", h.path(name))
	}
	hostKey, err := os.ReadFile(h.path("host.pub"))
	must(t, err)
	must(t, os.WriteFile(h.path("known"), append([]byte("test-host "), hostKey...), 0o600))
	must(t, os.WriteFile(h.path("config"), []byte(strings.Join([]string{
		"HostKey " + h.path("host"), "AuthorizedKeysFile " + h.path("user.pub"), "StrictModes no", "UsePAM no", "PasswordAuthentication no",
		"KbdInteractiveAuthentication no", "AllowTcpForwarding local", "PidFile none", "",
	}, "\n")), 0o600))
	h.output(t, h.sshd, "-t", "-f", h.path("config"))

	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	h.port = ln.(*net.TCPListener)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := h.port.AcceptTCP()
			if err != nil {
				return // closed
			}
			all.Go(func() { h.serve(t, c) })
		}
	})
	t.Cleanup(func() {
		h.port.Close()
		all.Wait() // each ssh has ended, and its sshd ends with the connection
	})
	return h
}

func (h *sshHost) path(name string) string { return filepath.Join(h.dir, name) }

// output runs a command that must succeed.
func (h *sshHost) output(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// serve runs an sshd for a connection, as inetd does, so that it needs no port of its own.
func (h *sshHost) serve(t *testing.T, c *net.TCPConn) {
	f, err := c.File()
	c.Close() // f is a descriptor of its own
	if err != nil {
		t.Errorf("sshd: %v", err)
		return
	}
	defer f.Close()
	var log strings.Builder
	cmd := exec.Command(h.sshd, "-i", "-e", "-f", h.path("config"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = f, f, &log
	_ = cmd.Run() // it ends when ssh is killed, which it calls a failure
	if text := log.String(); !strings.Contains(text, "Accepted publickey") {
		t.Errorf("sshd: %s", text)
	}
}

// tunnel starts an ssh that passes connections on to an address beside the sshd. It returns the address to dial, and the man between ssh and sshd.
// The end of the test ends the ssh.
func (h *sshHost) tunnel(t *testing.T, to netip.AddrPort) (netip.AddrPort, *man) {
	t.Helper()
	wire := between(t, plain, listening(h.port.Addr().(*net.TCPAddr).AddrPort()))
	me, err := user.Current()
	must(t, err)
	short, err := os.MkdirTemp("", "cnb") //nolint:usetesting // the path of a Unix socket has 103 bytes at most
	must(t, err)
	socket := filepath.Join(short, "s")
	var log strings.Builder
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, h.ssh, "-F", "none", "-N", "-i", h.path("user"), "-l", me.Username, "-p", fmt.Sprint(wire.addr().Port()),
		"-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "ExitOnForwardFailure=yes", "-o", "StrictHostKeyChecking=yes",
		"-o", "HostKeyAlias=test-host", "-o", "UserKnownHostsFile="+h.path("known"), "-o", "GlobalKnownHostsFile=none",
		"-o", "PermitLocalCommand=yes", "-o", "LocalCommand=echo ready", // printed when the tunnel is there
		"-L", socket+":"+to.String(), "127.0.0.1")
	cmd.Stderr = &log
	lines, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cancel() // kills this ssh
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait() // killed
		must(t, os.RemoveAll(short))
	})
	if line, err := bufio.NewReader(lines).ReadString('\n'); err != nil || line != "ready\n" {
		cancel()
		_ = cmd.Wait() // log is complete
		t.Fatalf("ssh has ended: %v: %s", err, &log)
	}
	return between(t, plain, func() (net.Conn, error) { return net.Dial("unix", socket) }).addr(), wire
}
