package demo

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/invariants"
	"cinnabar/internal/testproc"
	"cinnabar/margo"
)

// parity: S22
func TestTwoProcesses(t *testing.T) {
	code, o := clitest.RunProcess(t, "demo")
	if code != 0 || o.Stderr.String() != "" {
		t.Fatalf("exit code %d, stderr %q", code, o.Stderr)
	}
	if !strings.HasSuffix(o.Stdout.String(), "\nok\n\n"+next) {
		t.Errorf("the table does not end with ok and the next commands:\n%s", o.Stdout)
	}
	for _, pattern := range []string{
		`64 MiB of random data between processes \d+ and \d+`, `sha256 [0-9a-f]{64}\n`,
		`out-of-band exchange +1 .* connected`,
		`send/receive +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`RDMA write +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`RDMA write, immediate +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`RDMA read +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`fetch-and-add +1000 .*/s +1000 old values`,
		`compare-and-swap +1000 .*/s +1000 old values`,
		`file, basic, there +7 +64 MiB .*MiB/s +SHA-256 equal`,
		`file, basic, back +7 +64 MiB .*MiB/s +SHA-256 equal`,
		`file, fast, there +128 +64 MiB .*MiB/s +SHA-256 equal`,
		`file, fast, back +128 +64 MiB .*MiB/s +SHA-256 equal`,
		`RPC sum, ofi\+tcp +4 +160 B .*/s +36 each time`,
		`bulk pull, ofi\+tcp +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`memory write, ofi\+tcp +64 +64 MiB .*MiB/s +allocated 16 MiB`,
		`RPC sum, ofi\+verbs +4 +160 B .*/s +36 each time`,
		`bulk pull, ofi\+verbs +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`memory write, ofi\+verbs +64 +64 MiB .*MiB/s +allocated 16 MiB`,
		`memory read, ofi\+verbs +64 +64 MiB .*MiB/s +equal; freed`,
		`memory read, ofi\+tcp +64 +64 MiB .*MiB/s +equal; freed`,
	} {
		if !regexp.MustCompile(pattern).Match([]byte(o.Stdout.String())) {
			t.Errorf("nothing like %q in\n%s", pattern, o.Stdout)
		}
	}
}

// TestDemoAutoSM runs demo with shared memory beside the networks, and finds out that it carries the calls.
// parity: N06
func TestDemoAutoSM(t *testing.T) {
	if _, _, err := margo.ChooseAddr(t.Context(), "na+sm", nil); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, bytes.Repeat([]byte{0x5a}, roundLen+7), 0o600); err != nil {
		t.Fatal(err)
	}
	code, o := clitest.RunProcess(t, "demo", "--auto-sm", path)
	if code != 0 || !strings.HasSuffix(o.Stdout.String(), "\nok\n\n"+next) {
		t.Fatalf("exit code %d\n%s%s", code, o.Stdout, o.Stderr)
	}
	for _, step := range []string{"RPC sum", "bulk pull", "memory write", "memory read"} {
		for _, network := range []string{"ofi+tcp", "ofi+verbs"} {
			if want := step + ", na+sm beside " + network; !strings.Contains(o.Stdout.String(), want) {
				t.Errorf("no step %q in\n%s", want, o.Stdout)
			}
		}
	}
}

func TestFilesOfEverySize(t *testing.T) {
	sizes := []int{0, roundLen + 7} // more in TestDemoMovesEverySize
	if invariants.Race {
		sizes = []int{0, chunkLen - 1}
	}
	for _, size := range sizes {
		path := filepath.Join(t.TempDir(), "data")
		if err := os.WriteFile(path, bytes.Repeat([]byte{0x5a}, size), 0o600); err != nil {
			t.Fatal(err)
		}
		code, o := clitest.RunProcess(t, "demo", path)
		if code != 0 || !strings.HasSuffix(o.Stdout.String(), "\nok\n\n"+next) || !strings.Contains(o.Stdout.String(), path) {
			t.Errorf("%d bytes: exit code %d\n%s%s", size, code, o.Stdout, o.Stderr)
		}
	}
}

// startLong starts a demonstration that takes minutes, and returns when
// both of its processes are at work.
func startLong(t *testing.T) (parent *testproc.Process, peer int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	parent = clitest.Start(t, "demo", path)
	peer, err := strconv.Atoi(parent.Stdout.Expect(`between processes \d+ and (\d+)`)[1])
	if err != nil {
		t.Fatal(err)
	}
	return parent, peer
}

// wantGone waits for the parent and fails if its peer is left: the processes share the outputs, so that Wait gives up on them.
func wantGone(t *testing.T, parent *testproc.Process) {
	t.Helper()
	if errors.Is(parent.Wait(), exec.ErrWaitDelay) {
		t.Error("the peer process outlived its parent")
	}
}

func TestInterrupted(t *testing.T) {
	parent, _ := startLong(t)
	parent.Interrupt()
	wantGone(t, parent)
	if got := parent.ExitCode(); got != 130 {
		t.Errorf("exit code %d, want 130", got)
	}
	if got := parent.Stderr.String(); got != "cinnabar demo: stopped by signal: interrupt\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestParentKilled(t *testing.T) {
	parent, _ := startLong(t)
	parent.Kill()
	wantGone(t, parent)
}

func TestPeerKilled(t *testing.T) {
	parent, peer := startLong(t)
	p, err := os.FindProcess(peer)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	wantGone(t, parent)
	if got := parent.ExitCode(); got != 1 {
		t.Errorf("exit code %d, want 1", got)
	}
	if !strings.Contains(parent.Stderr.String(), "the peer process failed: signal: killed") { // the error behind it depends on the operation under way
		t.Errorf("stderr does not name the signal: %s", parent.Stderr)
	}
}
