package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/testproc"
)

// provokeEnv lists the faults that a process of the command provokes in itself before it runs, separated by spaces.
const provokeEnv = "CINNABAR_TEST_PROVOKE"

// provocations are the faults by name. Each gets the text behind the name and a colon.
var provocations = map[string]func(value string) error{
	"memlock": setLimit(unix.RLIMIT_MEMLOCK),
	"nofile":  setLimit(unix.RLIMIT_NOFILE),
	"nproc":   setLimit(unix.RLIMIT_NPROC),
	"fsize":   setLimit(unix.RLIMIT_FSIZE),
	"shm":     mountTmpfs("/dev/shm"),
	"tmp":     mountTmpfs("/tmp"),
	"stale": func(name string) error {
		return os.WriteFile("/dev/shm/"+name, make([]byte, 4096), 0o600)
	},
	"drop":     func(string) error { return dropAll() },
	"hostname": func(name string) error { return unix.Sethostname([]byte(name)) },
	"user": func(uid string) error { // last, because it takes the right to provoke others
		n, err := strconv.Atoi(uid)
		if err != nil {
			return err
		}
		if err := syscall.Setgid(n); err != nil {
			return err
		}
		return syscall.Setuid(n)
	},
}

func setLimit(resource int) func(string) error {
	return func(value string) error {
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return err
		}
		return unix.Setrlimit(resource, &unix.Rlimit{Cur: n, Max: n})
	}
}

// mountTmpfs mounts a tmpfs with options of mount(8) over a directory, for this process and its children.
func mountTmpfs(dir string) func(string) error {
	return func(options string) error {
		var flags uintptr
		if rest, ok := strings.CutPrefix(options, "ro,"); ok {
			options, flags = rest, unix.MS_RDONLY
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return unix.Mount("tmpfs", dir, "tmpfs", flags, options)
	}
}

// dropAll sets the loopback interface up, and adds a rule of nftables that drops TCP's SYN segments. It runs in a network namespace of its own, in which the
// interface is down at first.
func dropAll() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("start the interface lo: %w", err)
	}
	nft := exec.CommandContext(context.Background(), "/usr/sbin/nft", "-f", "-")
	nft.Stdin = strings.NewReader("table inet t {\nchain in {\ntype filter hook input priority 0;\ntcp flags syn drop\n}\n}\n")
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// provoke provokes the faults that the environment names.
func provoke() error {
	list := os.Getenv(provokeEnv)
	if err := os.Unsetenv(provokeEnv); err != nil { // the child process of the probe attach inherits the faults
		return err
	}
	for _, word := range strings.Fields(list) {
		name, value, _ := strings.Cut(word, ":")
		if err := provocations[name](value); err != nil {
			return fmt.Errorf("provoke %s: %w", word, err)
		}
	}
	return nil
}

// Faults of a real system: limits, users, namespaces and mounts of a process that runs the command.
// parity: Y03 P02
func TestProvokedFaultsOfProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("other users, namespaces and mounts take the rights of root")
	}
	const nobodyUser = " user:65534"
	for _, tc := range []struct {
		name       string
		provoke    string
		namespaces uintptr
		probe      string
		level      level
		finding    string
		remedy     string
	}{
		{"no locked memory", "memlock:0" + nobodyUser, 0, "memlock", levelFault, "no memory can be locked", "ulimit -l"},
		{"little locked memory", "memlock:65536" + nobodyUser, 0, "memlock", levelWarning, "only 64 KiB can be locked", "LimitMEMLOCK=infinity"},
		{"no capabilities", nobodyUser, 0, "capabilities", levelNote, "does not have CAP_IPC_LOCK", "--cap-add IPC_LOCK"},
		{"an undumpable process", nobodyUser, 0, "attach", levelWarning, "may not access the memory of this one", "CAP_SYS_PTRACE"},
		{"few descriptors", "nofile:200", 0, "nofile", levelFault, "only 200 files", "LimitNOFILE"},
		{"some descriptors", "nofile:1024", 0, "nofile", levelWarning, "only 1024 files", "ulimit -n"},
		{"few processes", "nproc:100", 0, "nproc", levelWarning, "only 100 processes", "ulimit -u"},
		{"no interface is up", "", unix.CLONE_NEWNET, "interfaces", levelFault, "no loopback interface is up", "ip link set lo up"},
		{"no loopback", "", unix.CLONE_NEWNET, "loopback", levelFault, "127.0.0.1: unreachable", "ip link set lo up"},
		{"no network for RPCs", "", unix.CLONE_NEWNET, "ofi+tcp", levelFault, "a call over ofi+tcp within this host fails", "loopback"},
		{"no network for the software device", "", unix.CLONE_NEWNET, "software-device", levelFault, "RDMA write on the software device fails", "loopback"},
		{"no network for RPCs over verbs", "", unix.CLONE_NEWNET, "ofi+verbs", levelFault, "a call over ofi+verbs within this host fails", "loopback"},
		{"a rule that drops packets", "drop", unix.CLONE_NEWNET, "loopback", levelFault, "127.0.0.1: timed out", "nft list ruleset"},
		{"no routes", "", unix.CLONE_NEWNET, "routes", levelNote, "no default route", "ip route add default"},
		{"a name that does not resolve", "hostname:no-such-host.invalid", unix.CLONE_NEWUTS | unix.CLONE_NEWNET, "hostname", levelWarning, "no-such-host.invalid, cannot be resolved", "/etc/hosts"},
		{"tiny shared memory", "shm:size=1m", unix.CLONE_NEWNS, "shm", levelFault, "10 MiB of /dev/shm cannot be reserved", "remount,size=1g"},
		{"small shared memory", "shm:size=32m", unix.CLONE_NEWNS, "shm", levelWarning, "/dev/shm has only 32 MiB", "--shm-size=1g"},
		{"shared memory only for reading", "shm:ro,size=64m", unix.CLONE_NEWNS, "shm", levelFault, "no file can be made in /dev/shm", "remount,rw"},
		{"shared memory of another user", "shm:size=64m,mode=755" + nobodyUser, unix.CLONE_NEWNS, "shm", levelFault, "may make no files in /dev/shm", "chmod 1777"},
		{"shared memory without the sticky bit", "shm:size=64m,mode=777", unix.CLONE_NEWNS, "shm", levelWarning, "every user may remove", "chmod 1777"},
		{"no shared memory for RPCs", "shm:ro,size=64m", unix.CLONE_NEWNS, "na+sm", levelFault, "a call over na+sm within this host fails", "shm"},
		{"names of ended processes", "shm:size=64m stale:na_sm-999999999-0", unix.CLONE_NEWNS, "sm-names", levelNote, "1 of 1 files of na+sm", "cinnabar info na+sm"},
		{"small files only", "fsize:65536", 0, "shm", levelFault, "no file of 10 MiB can be made in /dev/shm", "ulimit -f"},
		{"no room for sockets", "tmp:size=4k", unix.CLONE_NEWNS, "tmp", levelFault, "64 KiB of /tmp cannot be reserved", "remount,size=1g"},
		{"no rights for sockets", "tmp:size=1m,mode=755" + nobodyUser, unix.CLONE_NEWNS, "tmp", levelFault, "may make no files in /tmp", "chmod 1777"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := testproc.TryStart(t, testproc.Command{
				Path: "/proc/self/exe", Args: []string{"doctor", "--json", "--only", tc.probe}, Dir: "/", Limit: clitest.ProcessLimit,
				Env:  append([]string{provokeEnv + "=" + tc.provoke}, clitest.RunsCommand...),
				Attr: &syscall.SysProcAttr{Cloneflags: tc.namespaces},
			})
			if errors.Is(err, syscall.EPERM) {
				t.Skipf("this machine gives a test no namespaces: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			p.CloseInput()
			if p.ExitCode() == provokeFailed {
				t.Skipf("this machine does not let a test provoke it: %s", p.Stderr)
			}
			var r report
			if err := json.Unmarshal([]byte(p.Stdout.String()), &r); err != nil {
				t.Fatalf("%v: %s%s", err, p.Stdout, p.Stderr)
			}
			wantFinding(t, r.Findings, finding{tc.probe, tc.level, tc.finding, "", tc.remedy})
			if want := exitCodes[r.Worst]; p.ExitCode() != want {
				t.Errorf("exit code %d for the worst level %s, want %d", p.ExitCode(), r.Worst, want)
			}
		})
	}
}

// dropping is a listener that drops all packets, as a firewall's rule does: its socket has a filter that accepts none.
func dropping(ctx context.Context, address string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		return cmp.Or(c.Control(func(fd uintptr) {
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
		}), err)
	}}
	return lc.Listen(ctx, "tcp", address)
}

// Connections of which the packets are dropped end with the time-out of the probe, which leaves time for each of them.
// parity: Y03 P02
func TestDroppedPackets(t *testing.T) {
	const timeout = 200 * time.Millisecond
	sys := thisSystem()
	sys.listen = dropping
	l, err := dropping(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sys.addresses = []string{l.Addr().String(), "ofi+tcp://" + l.Addr().String()}
	linked(func(i *networkInterface) { i.addrs = []netip.Addr{netip.MustParseAddr("127.0.0.3")} })(sys)
	for _, want := range []finding{
		{"loopback", levelFault, "127.0.0.1: timed out", "drop rule", "nft list ruleset"},
		{"own-addresses", levelWarning, "127.0.0.3, an address of this host: timed out", "drop rule", "nft list ruleset"},
		{addressProbe, levelFault, sys.addresses[0] + ": timed out", "drop rule", "nft list ruleset"},
		{addressProbe, levelFault, sys.addresses[1] + ": timed out", "drop rule", "nft list ruleset"},
	} {
		wantFinding(t, examineFor(t, sys, want.Probe, timeout), want)
	}
}
