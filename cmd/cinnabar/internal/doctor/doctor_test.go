package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// knownWarnings are the probes that may warn on a machine that is in order, with the reason.
var knownWarnings = map[string]string{
	"memlock":       "users without CAP_IPC_LOCK may lock 8 MiB or less by default",
	"memory":        "the tests run beside others",
	"hugepages":     "programs of the machine may use all huge pages",
	"cgroup":        "a container may have less than 256 MiB or one processor",
	"gomaxprocs":    "GOMAXPROCS may be set in the environment of the tests",
	"nofile":        "a shell's limit may be 1024",
	"nproc":         "a container may limit processes",
	"ptrace-scope":  "hardened distributions set 2",
	"attach":        "a container's filter may hide process_vm_readv",
	"shm":           "a container has 64 MiB, or less",
	"tmp":           "a container may have /tmp without the sticky bit",
	"clock":         "a busy machine, or a virtual one without a stable counter, reads its clock slowly",
	"interfaces":    "a cable may be missing",
	"own-addresses": "a firewall may reject ports of own addresses",
	"hostname":      "a container may have a name that no file and no server knows",
	"ports":         "a container may have its own range",
	"tcp":           "distributions differ in the sizes of buffers",
	"rdma-ports":    "a port may have no cable",
	"rdma-devices":  "a device may have no active port",
}

// This machine has no fault, and no warning without a known reason.
// parity: Y03 P02
func TestThisMachine(t *testing.T) {
	code, p := clitest.RunProcess(t, "doctor", "--json")
	var r report
	if err := json.Unmarshal([]byte(p.Stdout.String()), &r); err != nil {
		t.Fatalf("%v: %s%s", err, p.Stdout, p.Stderr)
	}
	seen := map[string]bool{}
	for _, f := range r.Findings {
		seen[f.Probe] = true
		switch reason, known := knownWarnings[f.Probe]; {
		case f.Level == levelFault || f.Level == levelWarning && !known:
			t.Errorf("%+v", f)
		case f.Level == levelWarning:
			t.Logf("a warning with a known reason (%s): %+v", reason, f)
		case f.Finding == "" || f.Level == levelNote && f.Cause == "" || f.Level == levelNotTried && f.Remedy != "":
			t.Errorf("incomplete: %+v", f)
		}
	}
	for _, p := range probes {
		if p.name != addressProbe && !seen[p.name] {
			t.Errorf("the probe %s has no finding", p.name)
		}
	}
	if code != exitCodes[r.Worst] || r.Probes != len(probes)-1 || r.Timeout != probeTimeout.Seconds() {
		t.Errorf("exit code %d with %d probes, %v s and the worst level %s", code, r.Probes, r.Timeout, r.Worst)
	}
	if worse := code != cli.ExitOK; worse != strings.Contains(p.Stderr.String(), "found") {
		t.Errorf("exit code %d with %q on standard error", code, p.Stderr)
	}
}

// feigned returns the output of doctor with one probe, which adds the findings.
func feigned(t *testing.T, o *options, columns int, found ...finding) (string, error) {
	t.Helper()
	var b bytes.Buffer
	o.timeout, o.system, o.columns = probeTimeout, thisSystem(), columns
	err := o.run(t.Context(), []probe{{"feigned", "", false, func(_ context.Context, x *exam) {
		for _, f := range found {
			x.add(f.Level, f.Finding, f.Cause, f.Remedy)
		}
	}}}, &b)
	return b.String(), err
}

// The exit code is that of the worst level. A probe that was not tried does not change it.
func TestWorstLevel(t *testing.T) {
	of := func(l level) finding { return finding{Level: l, Finding: "x", Cause: "y", Remedy: "z"} }
	for _, tc := range []struct {
		found []finding
		code  int
		text  string
	}{
		{[]finding{of(levelOK)}, cli.ExitOK, "1 ok, 0 not tried"},
		{nil, cli.ExitOK, "0 ok, 1 not tried"},
		{[]finding{of(levelOK), of(levelNotTried), of(levelNote)}, cli.ExitOK, "0 faults, 0 warnings, 1 note, 1 ok, 1 not tried"},
		{[]finding{of(levelWarning), of(levelNote)}, cli.ExitWarning, "0 faults, 1 warning, 1 note"},
		{[]finding{of(levelWarning), of(levelFault), of(levelWarning)}, cli.ExitFault, "1 fault, 2 warnings"},
	} {
		for _, asJSON := range []bool{false, true} {
			out, err := feigned(t, &options{json: asJSON}, cli.Width, tc.found...)
			if got := cli.ExitCode(t.Context(), err); got != tc.code {
				t.Errorf("%v: exit code %d, want %d: %v", tc.found, got, tc.code, err)
			}
			if !asJSON && !strings.Contains(out, tc.text) {
				t.Errorf("%v: %q, want %q in it", tc.found, out, tc.text)
			}
		}
	}
}

// Texts of files and of other users have no effect on a terminal, are bounded, and fit the terminal.
func TestHostileTexts(t *testing.T) {
	hostile := "\x1b]0;title\x07\x1b[2J\u202e" + strings.Repeat("long word ", 40) + strings.Repeat("w", 10_000) + "\xff\xfe"
	for _, columns := range []int{80, 40} {
		out, err := feigned(t, &options{}, columns, finding{Level: levelFault, Finding: hostile, Cause: hostile, Remedy: hostile})
		if cli.ExitCode(t.Context(), err) != cli.ExitFault {
			t.Fatal(err)
		}
		if len(out) > 8*maxText {
			t.Errorf("%d bytes", len(out))
		}
		for line := range strings.Lines(out) {
			line = strings.TrimSuffix(line, "\n")
			if n := utf8.RuneCountInString(line); n > columns {
				t.Errorf("%d columns of %d: %s", n, columns, line)
			}
			if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%q is not printable at %d", line, i)
			}
		}
	}
	out, _ := feigned(t, &options{json: true}, cli.Width, finding{Level: levelNote, Finding: hostile})
	if strings.ContainsAny(out, "\x1b\x07") || !json.Valid([]byte(out)) {
		t.Errorf("%q", out)
	}
	sys := thisSystem()
	sys.root = tree(t, map[string]string{"proc/sys/net/ipv4/tcp_congestion_control": "\x1b[31m" + strings.Repeat("x", 2*maxFile)})
	for _, f := range examination(t, sys, "tcp") {
		if len(f.Finding) > maxText || strings.Contains(f.Finding, "\x1b") {
			t.Errorf("%q", f.Finding)
		}
	}
}

// Files without sense, and files that are absent, are no findings of their own: the probe says that it could not run.
func TestUnreadableSystem(t *testing.T) {
	garbage := map[string]string{}
	for _, name := range []string{
		"proc/meminfo", "proc/self/cgroup", "proc/self/status", "proc/sys/fs/file-nr", "proc/sys/net/ipv4/ip_local_port_range", "proc/net/route", "proc/net/ipv6_route",
		"proc/sys/net/core/somaxconn", "proc/sys/net/ipv4/tcp_rmem", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/cpu.max", "sys/class/infiniband/x/ports/y/gids/0",
	} {
		garbage[name] = "0::\x00\nMemTotal: -5 kB\nCapEff: zz\n9 9 9999999999999999999999\n"
	}
	for name, root := range map[string]string{"nothing": t.TempDir(), "garbage": tree(t, garbage)} {
		sys := thisSystem()
		sys.root = root
		for _, p := range probes {
			if !p.linux || p.name == "attach" || p.name == "memlock" || p.name == "na+sm" {
				continue
			}
			for _, f := range examination(t, sys, p.name) {
				if f.Finding == "" || f.Probe != p.name {
					t.Errorf("%s: %+v", name, f)
				}
			}
		}
	}
	sys := thisSystem()
	sys.root = t.TempDir()
	for _, name := range []string{"memory", "cgroup", "capabilities", "seccomp", "sm-names", "routes", "ports", "tcp", "rdma-ports", "rdma-files"} {
		wantFinding(t, examination(t, sys, name), finding{Probe: name, Level: levelNotTried})
	}
}

// A probe that hangs ends with its time-out, and with the command.
func TestProbeThatHangs(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{}, 2)
	p := probe{"stuck", "", false, func(context.Context, *exam) {
		<-release
		ended <- struct{}{}
	}}
	found, err := p.examine(t.Context(), thisSystem(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, found, finding{Probe: "stuck", Level: levelWarning, Finding: "no result after 1ms", Remedy: "--skip stuck"})
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(cli.SignalError{Signal: os.Interrupt}) })
	began := time.Now()
	_, err = p.examine(ctx, thisSystem(), time.Hour)
	if cli.ExitCode(ctx, err) != cli.ExitSignal+int(syscall.SIGINT) || time.Since(began) > clitest.ProcessLimit {
		t.Errorf("after an interrupt: %v", err)
	}
	if _, err := p.examine(ctx, thisSystem(), time.Hour); err == nil {
		t.Error("a probe was started after the interrupt")
	}
	close(release)
	<-ended
	<-ended
}

// Probes that only another system has are not tried there.
func TestNotTriedElsewhere(t *testing.T) {
	x := &exam{probe: "x"}
	x.notTried("linux only")
	if x.found[0].Level != levelNotTried || levelNotTried.rank() != levelOK.rank() {
		t.Errorf("%+v", x.found)
	}
	for range 2 * maxFindings {
		x.ok("again")
	}
	if len(x.found) != maxFindings {
		t.Errorf("%d findings of one probe", len(x.found))
	}
}

// A result that cannot be written is an error, and not the exit code of a finding.
func TestFullDisk(t *testing.T) {
	full := errors.New("disk full")
	for _, o := range []options{{}, {json: true}} {
		o.timeout, o.system = probeTimeout, thisSystem()
		err := o.run(t.Context(), []probe{{"x", "", false, func(_ context.Context, x *exam) { x.add(levelFault, "f", "c", "r") }}}, clitest.WriterFunc(func([]byte) (int, error) { return 0, full }))
		if !errors.Is(err, full) {
			t.Errorf("%v, want %v", err, full)
		}
	}
}

func TestDoctorExitCodes(t *testing.T) {
	clitest.WantExits(t, []clitest.Exit{
		{Args: "doctor --list"},
		{Args: "doctor -l --json"},
		{Args: "doctor --only capabilities"},
		{Args: "doctor --only nosuch", Code: cli.ExitUsage, Text: `there is no probe "nosuch"; cinnabar doctor --list lists them`},
		{Args: "doctor --only clock --skip clock", Code: cli.ExitUsage, Text: "leave no probe"},
		{Args: "doctor --only clock 127.0.0.1:1", Code: cli.ExitUsage, Text: "leaves out the probe address"},
		{Args: "doctor host", Code: cli.ExitUsage, Text: "is not HOST:PORT"},
		{Args: "doctor host:70000", Code: cli.ExitUsage, Text: "1 to 65535"},
		{Args: "doctor ofi+tcps://10.0.0.1:5", Code: cli.ExitUsage, Text: "give HOST:PORT"},
		{Args: "doctor ofi+verbs://10.0.0.1:5", Code: cli.ExitUsage, Text: "cinnabar ping"},
		{Args: "doctor --only address " + strings.Repeat(" 127.0.0.1:1", maxAddresses+1), Code: cli.ExitUsage, Text: "usage: cinnabar doctor"},
		{Args: "doctor -t -1s", Code: cli.ExitUsage, Text: "--timeout is -1s"},
		{Args: "doctor --only address 127.0.0.1:1", Code: cli.ExitFault, Text: "1 fault and 0 warnings were found"},
		{Args: "doctor-peer", Code: cli.ExitFailure, Text: "started by others"},
	}, func(t *testing.T, e clitest.Exit, o *clitest.Output) {
		if (e.Code == cli.ExitOK || e.Code == cli.ExitFault) != (o.Out.Len() > 0) {
			t.Errorf("exit code %d with %q on standard output", e.Code, &o.Out)
		}
	})
	clitest.WantRun(t, cli.ExitOK, []string{"__complete", "doctor", "--only", "mem"}, "memlock\tlock memory of growing sizes", "memory")
}

// An interrupt ends the command within a second, while a server does not answer.
func TestInterruptOfDoctor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := clitest.Start(t, "doctor", "--only", "address", "--timeout", "1h", "ofi+tcp://"+l.Addr().String())
	p.Stdout.Expect("^1 probe, with a time-out of 1h0m0s$")
	p.Interrupt()
	if code := p.ExitCode(); code != cli.ExitSignal+int(syscall.SIGINT) {
		t.Errorf("exit code %d: %s", code, p.Stderr)
	}
}

// The page of the manual names every probe.
func TestManualNamesProbes(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "doctor.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range probes {
		if !strings.Contains(string(page), fmt.Sprintf("| `%s` |", p.name)) {
			t.Errorf("docs/doctor.md has no row for the probe %s", p.name)
		}
	}
}
