//go:build linux

package rdmacore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
)

// Tests named TestBad... are about days on which something outside of the
// program is wrong. Each wants an error that names the thing and the remedy, in
// bounded time, and everything can be closed afterwards.

// throwawayEnv says that the machine is a throwaway: tests may make and delete
// devices, links and files of it.
const throwawayEnv = "CINNABAR_RDMA_THROWAWAY"

// childEnv marks a process that a test has started to run itself again, with
// limits, rights or a device of its own. It names the device.
const childEnv = "CINNABAR_RDMA_CHILD"

// patience bounds every wait. It is reached only by what hangs.
const patience = 60 * time.Second

// needThrowaway skips where the machine must stay as it is.
func needThrowaway(t *testing.T) {
	t.Helper()
	if os.Getenv(throwawayEnv) == "" {
		t.Skipf("it reconfigures the machine; set %s=1 on one that is a throwaway", throwawayEnv)
	}
	if os.Geteuid() != 0 {
		t.Skip("it reconfigures the machine, which takes root")
	}
}

// sh runs a shell command, which must succeed.
func sh(t *testing.T, format string, args ...any) string {
	t.Helper()
	script := fmt.Sprintf(format, args...)
	out, err := exec.CommandContext(soon(t), "sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// soon is a context that ends when something must be taken to hang.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// link is an RDMA device that a test may break, on a cable of its own. The cable's
// other end is in a network namespace, both of the device's name.
type link struct {
	device, netdev string
	ip, peerIP     string
}

var links int

// newLink makes a device of the same driver as the one under test. Only a child
// process opens it: librdmacm keeps a device open until the process ends, and the
// drivers wait for that before they let a device go.
func newLink(t *testing.T) *link {
	t.Helper()
	needThrowaway(t)
	kind := "rxe"
	if strings.HasPrefix(testDevice(t), "siw") {
		kind = "siw"
	}
	links++
	l := &link{device: fmt.Sprintf("%sbad%d", kind, links), netdev: fmt.Sprintf("bad%d", links),
		ip: fmt.Sprintf("10.66.%d.1", links), peerIP: fmt.Sprintf("10.66.%d.2", links)}
	sh(t, `ip netns add %[2]s; ip link add %[2]s type veth peer name p%[2]s netns %[2]s
		ip addr add %[3]s/24 dev %[2]s; ip -n %[2]s addr add %[4]s/24 dev p%[2]s
		ip link set %[2]s up; ip -n %[2]s link set p%[2]s up; ip -n %[2]s link set lo up
		rdma link add %[1]s type %[5]s netdev %[2]s`, l.device, l.netdev, l.ip, l.peerIP, kind)
	t.Cleanup(func() {
		sh(t, `! rdma link show %[1]s/1 >/dev/null 2>&1 || rdma link delete %[1]s; ip link delete %[2]s; ip netns delete %[2]s`, l.device, l.netdev)
	})
	l.awaitCable(t)
	return l
}

// awaitCable waits until packets pass: a new link drops the first ones. The other
// end refuses TCP, which is an answer.
func (l *link) awaitCable(t *testing.T) {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(soon(t), "tcp", l.peerIP+":7174")
	if err == nil {
		closeWell(t, c)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("the cable of %s: %v, want a refusal", l.device, err)
	}
}

// Environment variables that describe its link to a child process.
const (
	netdevEnv = "CINNABAR_RDMA_NETDEV" // its network interface
	peerEnv   = "CINNABAR_RDMA_PEER"   // the address of the cable's other end
)

// env is what a child is told of its link.
func (l *link) env() []string { return []string{netdevEnv + "=" + l.netdev, peerEnv + "=" + l.peerIP} }

func peerIP(t *testing.T) netip.Addr {
	t.Helper()
	ip, err := netip.ParseAddr(os.Getenv(peerEnv))
	if err != nil {
		t.Fatal(err)
	}
	return ip
}

// downLink takes the child's network interface down and returns its name.
func downLink(t *testing.T) string {
	t.Helper()
	netdev := os.Getenv(netdevEnv)
	sh(t, "ip link set %s down", netdev)
	return netdev
}

// child is a process that runs the same test again.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said bytes.Buffer // all of its output so far
	err  bytes.Buffer
}

// inChild returns the device's name in the child process and "" in the first one.
func inChild() string { return os.Getenv(childEnv) }

// newChild starts the test again in a process of its own; env is added to its environment.
func newChild(t *testing.T, device string, env ...string) *child {
	t.Helper()
	return startChild(t, nil, device, env...)
}

// newPeer is newChild at the other end of the link's cable, where there is no RDMA device.
func (l *link) newPeer(t *testing.T) *child {
	t.Helper()
	return startChild(t, []string{"ip", "netns", "exec", l.netdev}, peerDevice, l.env()...)
}

// peerDevice is what a process at the other end is told that its device is.
const peerDevice = "none"

func startChild(t *testing.T, wrapper []string, device string, env ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, p := range strings.Split(t.Name(), "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(p)+"$")
	}
	argv := append(wrapper, exe, "-test.run="+strings.Join(parts, "/"), "-test.v")
	c := &child{t: t, cmd: exec.CommandContext(soon(t), argv[0], argv[1:]...)}
	c.cmd.Env = append(append(os.Environ(), childEnv+"="+device, deviceEnv+"="+device), env...)
	c.cmd.Stderr = &c.err
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	pipe, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(io.TeeReader(pipe, &c.said))
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// await reads until the child says what, and returns the words after it.
func (c *child) await(what string) string {
	c.t.Helper()
	for {
		line, err := c.out.ReadString('\n')
		if _, rest, ok := strings.Cut(line, "says "+what); ok {
			return rest
		}
		if err != nil {
			_ = c.cmd.Wait() // its output tells more
			c.t.Fatalf("the child ended before it said %q\n%s%s", what, &c.said, &c.err)
		}
	}
}

// finish tells the child to go on, waits for its end and returns its output.
func (c *child) finish() string {
	c.t.Helper()
	_ = c.in.Close() // nobody may be reading
	_, err := io.Copy(io.Discard, c.out)
	err = errors.Join(err, c.cmd.Wait())
	out := c.said.String() + c.err.String()
	if err != nil || !strings.Contains(out, "--- PASS: "+c.t.Name()) || strings.Contains(out, "--- SKIP") {
		c.t.Fatalf("the child: %v\n%s", err, out)
	}
	c.t.Log(out)
	return out
}

// say tells the first process something, in a child.
func say(what string) { fmt.Printf("\nsays %s\n", what) }

// hear waits until the first process tells this one to go on.
func hear(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Fatal(err)
	}
}

// badDevice opens a device and closes it, with a look at what is left behind.
func badDevice(t *testing.T, name string) *verbs.Device {
	t.Helper()
	warmUp(t, name)
	before := resources()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		after := resources()
		for end := time.Now().Add(patience); after != before && time.Now().Before(end); after = resources() {
			runtime.Gosched()
		}
		if after != before {
			buf := make([]byte, 1<<16)
			t.Errorf("left behind: %s, was %s\n%s", after, before, buf[:runtime.Stack(buf, true)])
		}
	})
	dev := openForSuite(t, name, verbstest.Options{})
	t.Cleanup(func() { closeWell(t, dev) })
	return dev
}

func closeWell(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close %T: %v", c, err)
	}
}

// resources counts what a test may not leave behind.
func resources() string {
	list, _ := os.ReadDir("/proc/self/fd") // nil counts as none, both times
	return fmt.Sprintf("%d goroutines, %d descriptors, %d bytes mapped", runtime.NumGoroutine(), len(list), hostmem.Mapped())
}

// wantError checks the class and the words of an error, and shows it as people will read it.
func wantError(t *testing.T, err, class error, words ...string) {
	t.Helper()
	if err == nil || class != nil && !errors.Is(err, class) {
		t.Errorf("error = %v, want one that is %v", err, class)
		return
	}
	t.Logf("it says: %v", err)
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}
