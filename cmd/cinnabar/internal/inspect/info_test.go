package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/codes"
	"cinnabar/internal/hostquota"
	"cinnabar/margo"
)

func TestInfoExitCodes(t *testing.T) {
	clitest.WantExits(t, []clitest.Exit{
		{Args: "info"},
		{Args: "info tcp"},
		{Args: "info ofi+tcp"},
		{Args: "info ofi+tcp://127.0.0.1:1234"},
		{Args: "info -c"},
		{Args: "info -j tcp"},
		{Args: "info nosuch", Code: 1, Text: `HG_PROTONOSUPPORT: there is no protocol "nosuch"; there is ofi+tcp, na+sm`},
		{Args: "info ofi", Code: 1, Text: "HG_PROTONOSUPPORT"},
		{Args: "info na+sm"},
		{Args: "info sm"},
		{Args: "info verbs"},
		{Args: "info ofi+verbs"},
		{Args: "info verbs;ofi_rxm"},
		{Args: "info ucx+all", Code: 1, Text: "HG_PROTONOSUPPORT: ucx+all cannot be used: there is no transport on UCX"},
		{Args: "info na+tcp", Code: 1, Text: "there is no protocol"},
		{Args: "info a b", Code: 2, Text: "usage: cinnabar info"},
		{Args: "info -s tcp"},
		{Args: "info -s nosuch", Code: 1, Text: "HG_PROTONOSUPPORT"},
		{Args: "info -c -j", Code: 2, Text: "choose one"},
		{Args: "info --frobnicate", Code: 2, Text: "cinnabar info --help"},
	}, func(t *testing.T, e clitest.Exit, o *clitest.Output) {
		if (e.Code == 0 && !strings.Contains(e.Args, "-s ")) != (o.Out.Len() > 0) {
			t.Errorf("exit code %d with %q on standard output", e.Code, &o.Out)
		}
	})
}

// The formats for programs name the loopback, which every machine has.
// parity: H06 H120 G92 D35
func TestInfo(t *testing.T) {
	infoOf := func(args ...string) string {
		var o clitest.Output
		if code := clitest.Run(t.Context(), append([]string{"info"}, args...), o.Streams()); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, &o.Err)
		}
		if o.Err.Len() > 0 { // trying is quiet
			t.Errorf("%v: %q on standard error", args, &o.Err)
		}
		return o.Out.String()
	}
	if got := infoOf("--csv"); !strings.HasPrefix(got, "class,protocol,device\nofi,tcp,") {
		t.Errorf("as csv:\n%s", got)
	}
	var r infoReport
	if err := json.Unmarshal([]byte(infoOf("--json")), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Protocols) == 0 || len(r.Unavailable) < 2 || len(r.Chosen) != 3 || r.Chosen[0].Protocol != "ofi+tcp" || r.Chosen[0].Reason == "" {
		t.Fatalf("%+v", r)
	}
	if c := r.Chosen[1]; c.Protocol != "na+sm" || c.Address != "na+sm://" || c.Reason == "" {
		t.Errorf("chosen for shared memory: %+v", c)
	}
	for i, of := range []string{"engine", "software device", "receiver of files"} {
		l := r.Limits[i]
		if l.Of != of || l.MaxMemory <= 0 || l.MaxConnections <= 0 || l.MemorySource == "" || l.ConnectionsSource == "" {
			t.Errorf("limits of a %s: %+v", of, l)
		}
	}
	if c := r.Chosen[2]; c.Protocol != "ofi+verbs;ofi_rxm" || c.Reason == "" || c.Address == "" && !strings.Contains(c.Reason, "--device software") {
		t.Errorf("chosen for RDMA devices: %+v", c)
	}
	verbs := slices.IndexFunc(r.Protocols, func(l infoLine) bool { return l.Protocol == "verbs;ofi_rxm" })
	for _, l := range r.Protocols[verbs:] {
		if l.Device == "" || l.Specifier != "ofi+verbs;ofi_rxm://"+l.Device || !strings.HasPrefix(l.Runtime, l.Address+":") || l.Reason != "" {
			t.Errorf("on an RDMA device: %+v", l)
		}
	}
	if l := r.Protocols[len(r.Protocols)-1]; l.Device != "cinnabar0" {
		t.Errorf("the last one is %+v, want the software device", l)
	}
	r.Protocols = r.Protocols[:verbs]
	last := len(r.Protocols) - 1
	if l := r.Protocols[last]; l != (infoLine{Specifier: "na+sm://", Class: "na", Protocol: "sm", Device: "shm", Address: "na+sm://", Runtime: l.Runtime}) || !strings.HasPrefix(l.Runtime, "na+sm://") {
		t.Errorf("the last one is %+v", l)
	}
	for _, l := range r.Protocols[:last] {
		if l.Class != "ofi" || l.Protocol != "tcp" || l.Device == "" || !strings.HasPrefix(l.Runtime, l.Address+":") || l.Reason != "" {
			t.Errorf("usable: %+v", l)
		}
	}
	for _, l := range r.Unavailable {
		if l.Reason == "" || l.Address != "" {
			t.Errorf("not usable: %+v", l)
		}
	}
	// The address that would be chosen is the one that is chosen.
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if !strings.HasPrefix(e.Addr(), r.Chosen[0].Address+":") {
		t.Errorf("chosen is %s, but an engine listens at %s", r.Chosen[0].Address, e.Addr())
	}
}

func TestDefaultLimits(t *testing.T) {
	got := defaultLimits(hostquota.Capacity{Memory: 2 << 30, MemorySource: "cgroup /a: memory.max", Files: 1 << 20, FilesSource: "RLIMIT_NOFILE"})
	if e := got[0]; e.MaxMemory != 1<<30 || e.MemorySource != "half of cgroup /a: memory.max" || e.MaxConnections != 2048 || e.ConnectionsSource != "an eighth of its memory" {
		t.Errorf("engine: %+v", e)
	}
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	cfg, here := e.Config(), defaultLimits(hostquota.Machine())[0]
	if cfg.MaxMemory != here.MaxMemory || int64(cfg.MaxConnections) != here.MaxConnections {
		t.Errorf("an engine has %d bytes and %d connections, the table %+v", cfg.MaxMemory, cfg.MaxConnections, here)
	}
	small := hostquota.Capacity{Memory: 48 << 20, MemorySource: "physical memory", Files: 1024, FilesSource: "RLIMIT_NOFILE"}
	if e := defaultLimits(small)[0]; e.MaxMemory != 32<<20 || e.MemorySource != "the least by default" || e.MaxConnections != 64 {
		t.Errorf("engine on a machine of 48 MiB: %+v", e)
	}
	if l := receiverLimits(small, 64, 32<<20); l.MemorySource != "the least by default" {
		t.Errorf("receiver on a machine of 48 MiB: %+v", l)
	}
	if d := got[1]; d.MaxConnections != (1<<20-1024)/3 || d.ConnectionsSource != "RLIMIT_NOFILE" {
		t.Errorf("device: %+v", d)
	}
}

// parity: G92
func TestInfoTable(t *testing.T) {
	r := &infoReport{Chosen: []infoChosen{{"ofi+tcp", "ofi+tcp://10.9.0.1", "the only address"}}}
	r.add(margo.Protocol{Class: "ofi", Name: "tcp", Device: "lo", Addr: "ofi+tcp://127.0.0.1"}, "ofi+tcp://127.0.0.1:40001")
	r.add(margo.Protocol{Class: "ofi", Name: "tcp", Device: "eth0", Addr: "ofi+tcp://10.9.0.1"}, "ofi+tcp://10.9.0.1:40002")
	r.add(margo.Protocol{Class: "na", Name: "sm", Device: "shm", Addr: "na+sm://"}, "na+sm://4711-0")
	r.add(margo.Protocol{Class: "ofi", Name: "tcp", Device: "eth1",
		Err: &cinnabar.Error{Op: "choose address", Addr: "eth1", Code: codes.AddrNotAvail, Err: errors.New("the interface is down")}}, "")
	r.add(margo.Protocol{Class: "ucx", Name: "all", Err: errors.New("there is no such transport")}, "")
	r.Limits = []infoLimits{{"engine", 12 << 30, "half of physical memory", 510, "RLIMIT_NOFILE"}, {"receiver of files", 1 << 30, "the most by default", 64, "the most by default"}}
	r.Libraries = []string{"go go1.26", "example.org/lib v1.2.3"}
	var b bytes.Buffer
	if err := r.write(&infoOptions{}, &b); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "info.golden", b.String())
	full := errors.New("disk full")
	for _, o := range []infoOptions{{}, {csv: true}, {json: true}} {
		if err := r.write(&o, clitest.WriterFunc(func([]byte) (int, error) { return 0, full })); !errors.Is(err, full) {
			t.Errorf("%+v: error %v, want %v", o, err, full)
		}
	}
}

// Where no interface can be used, the reasons are those of the interfaces.
// parity: G92
func TestInfoWithoutInterfaces(t *testing.T) {
	r := &infoReport{}
	all := []margo.Protocol{{Class: "ofi", Name: "tcp", Device: "eth1", Err: errors.New("the interface is down")}}
	r.add(all[0], "")
	clitest.WantError(t, r.unsupported("tcp", all), "HG_PROTONOSUPPORT", "eth1 the interface is down")
}

// TestInfoLog has the reasons for addresses in a file, and the modules that the program is made of in the list.
// parity: G92
func TestInfoLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var o clitest.Output
	if code := clitest.Run(t.Context(), []string{"info", "--log", path, "-l", "-j", "tcp"}, o.Streams()); code != 0 {
		t.Fatalf("exit code %d: %s", code, &o.Err)
	}
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r infoReport
	if err := json.Unmarshal(o.Out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	for _, l := range r.Protocols {
		if want := "[debug] endpoint opened address=" + l.Runtime + " reason="; !strings.Contains(string(log), want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if len(r.Libraries) == 0 || !strings.HasPrefix(r.Libraries[0], "go1") {
		t.Errorf("libraries: %q", r.Libraries)
	}
	clitest.WantRun(t, 1, []string{"info", "--log", filepath.Join(path, "below"), "tcp"}, "below")
}

// TestTryFails has an engine that cannot be opened after all.
// parity: G92 D35
func TestTryFails(t *testing.T) {
	p, _ := try(margo.Protocol{Class: "ofi", Name: "tcp", Device: "nosuch0", Addr: "ofi+tcp://10.0.0.1"}, nil)
	r := &infoReport{}
	r.add(p, "")
	if len(r.Unavailable) != 1 || r.Unavailable[0].Address != "" || !strings.Contains(r.Unavailable[0].Reason, "nosuch0") {
		t.Errorf("%+v", r)
	}
}

// TestReceiverLimits names RLIMIT_NOFILE as the source where it is what bounds the transfers, and only there.
func TestReceiverLimits(t *testing.T) {
	m := hostquota.Capacity{Memory: 1 << 40, MemorySource: "physical memory", Files: 100, FilesSource: "RLIMIT_NOFILE"}
	if l := receiverLimits(m, m.DefaultConnections(receiverDescriptors), 1<<30); l.ConnectionsSource != "RLIMIT_NOFILE" || l.MemorySource != "the most by default" {
		t.Errorf("%+v", l)
	}
	m.Files, m.Memory = 1<<20, 1<<30
	if l := receiverLimits(m, 64, 1<<29); l.ConnectionsSource != "the most by default" || l.MemorySource != "half of physical memory" {
		t.Errorf("%+v", l)
	}
}
