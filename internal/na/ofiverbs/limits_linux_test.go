package ofiverbs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/testproc"
	"cinnabar/verbs/iwarp"
)

// roleEnv is set in the processes that TestLockLimit and TestManyClients start, which run the same tests in another role.
const roleEnv = "OFIVERBS_TEST_ROLE"

// TestLockLimit opens an endpoint on a device that locks registered memory, in a process that may lock less than one connection needs: the
// error names the limit, the need and the remedy. With room for a few connections it opens. Limit and user are those of a process, so
// the test runs itself again in others, which give up their privileges.
// parity: N05
func TestLockLimit(t *testing.T) {
	if limit, err := strconv.ParseUint(os.Getenv(roleEnv), 10, 64); err == nil {
		openWithLimit(t, limit)
		return
	}
	for _, limit := range []uint64{256 << 10, 4 << 20} {
		p := testproc.Run(t, testproc.Command{Args: []string{"-test.run=^TestLockLimit$", "-test.v"}, Env: []string{fmt.Sprintf("%s=%d", roleEnv, limit)}})
		if p.ExitCode() != 0 {
			t.Errorf("with a limit of %d bytes the test fails", limit)
		}
	}
}

// openWithLimit runs in the other process.
func openWithLimit(t *testing.T, limit uint64) {
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // package syscall's calls change all threads of the process
		if err := syscall.Setuid(65534); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := iwarp.Open(iwarp.Config{LockMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	e, err := Open(t.Context(), Config{Device: dev, Address: "ofi+verbs://127.0.0.1:0"})
	if err == nil {
		closeEndpoint(t, e)
	}
	if limit > 2*mostPinned {
		if err != nil {
			t.Errorf("with a limit of %d bytes: %v", limit, err)
		}
		return
	}
	if err == nil {
		t.Fatalf("an endpoint opens with a limit of %d bytes", limit)
	}
	for _, part := range []string{fmt.Sprintf("limit of this process is %d bytes", limit), "399360 bytes", "Config.MaxRequest", "ulimit -l unlimited", "LimitMEMLOCK"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// TestManyClients connects clients to a server in a process of its own, and compares the growth of its resident memory with the share that
// each of 1,000 clients has of 1 GiB. CINNABAR_LARGE=1 connects 1,000; otherwise the test connects 100.
// parity: N05
func TestManyClients(t *testing.T) {
	if os.Getenv(roleEnv) == "server" {
		serveMany(t)
		return
	}
	clients := 100
	if os.Getenv("CINNABAR_LARGE") != "" {
		clients = 1000
	}
	p := testproc.Start(t, testproc.Command{Args: []string{"-test.run=^TestManyClients$"}, Env: []string{roleEnv + "=server"}})
	resident := func() (n int) {
		p.Send("resident")
		if _, err := fmt.Sscan(p.Stdout.Line(), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	addr := p.Stdout.Line()
	before := resident()
	dev := openDevice(t)
	for i := range clients {
		c := openEndpoint(t, Config{Device: dev})
		to, err := c.Lookup(addr)
		if err != nil {
			t.Fatal(err)
		}
		ask(t, c, to, uint32(i), noise(c.Limits().MaxRequest))
	}
	grown := resident() - before
	t.Logf("%d clients: the server has grown by %d KiB, %d KiB for each", clients, grown>>10, grown>>10/clients)
	if grown > clients<<20 {
		t.Errorf("the server has grown by %d bytes with %d clients; each of 1,000 has 1 MiB of 1 GiB", grown, clients)
	}
	p.CloseInput()
}

// serveMany is the server of TestManyClients. It prints its address, and for each line of input the bytes of its resident memory.
func serveMany(t *testing.T) {
	lock := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}) == nil
	dev, err := iwarp.Open(iwarp.Config{LockMemory: lock}) // locked pages are resident from their registration on
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := &echo{}
	if s.e, err = Open(t.Context(), Config{Device: dev, Address: "ofi+verbs://127.0.0.1:0", Listen: true, Handler: s}); err != nil {
		t.Fatal(err)
	}
	defer closeEndpoint(t, s.e)
	fmt.Println(s.e.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		b, err := os.ReadFile("/proc/self/statm")
		f := bytes.Fields(b)
		if err != nil || len(f) < 2 {
			t.Fatalf("statm is %q: %v", b, err)
		}
		pages, err := strconv.Atoi(string(f[1]))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(pages * os.Getpagesize())
	}
}
