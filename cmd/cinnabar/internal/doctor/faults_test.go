package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/hostmem"
	"cinnabar/verbs/auto"
)

// exitCodes are those of the worst levels.
var exitCodes = map[level]int{levelOK: cli.ExitOK, levelWarning: cli.ExitWarning, levelFault: cli.ExitFault}

// wantFinding fails unless one of the findings has the level of want and contains its texts.
func wantFinding(t *testing.T, found []finding, want finding) {
	t.Helper()
	for _, f := range found {
		if f.Probe == want.Probe && f.Level == want.Level && strings.Contains(f.Finding, want.Finding) && strings.Contains(f.Cause, want.Cause) && strings.Contains(f.Remedy, want.Remedy) {
			if f.Level.rank() > 0 && f.Remedy == "" {
				t.Errorf("%+v has no remedy", f)
			}
			return
		}
	}
	t.Errorf("found %+v\nwant %+v", found, want)
}

// tree makes files below a directory of the test and returns it. A text that begins with "->" makes a symbolic link, and a name that ends
// in "/" a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch to, link := strings.CutPrefix(text, "->"); {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(to, path)
		default:
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// groupFiles are the files of a process in a control group of version 2 with these settings.
func groupFiles(settings map[string]string) map[string]string {
	files := map[string]string{"proc/self/cgroup": "0::/run/inner\n", "sys/fs/cgroup/run/inner/": ""}
	for name, text := range settings {
		files["sys/fs/cgroup/run/"+name] = text + "\n"
	}
	return files
}

// portFiles are the files of an active port of RoCE, with changes. Their names are those in the port's directory, or begin with a slash.
func portFiles(changes map[string]string) map[string]string {
	const port = "sys/class/infiniband/mlx5_0/ports/1/"
	files := map[string]string{
		port + "state": "4: ACTIVE\n", port + "phys_state": "5: LinkUp\n", port + "link_layer": "Ethernet\n", port + "rate": "100 Gb/sec (4X EDR)\n",
		port + "gids/0": "0000:0000:0000:0000:0000:ffff:0a00:0001\n", port + "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
		port + "gid_attrs/types/0": "RoCE v2\n", port + "gid_attrs/ndevs/0": "eth1\n", "sys/class/infiniband/mlx5_0/node_type": "1: CA\n",
		"sys/class/net/eth1/mtu": "9000\n",
	}
	for name, text := range changes {
		if !strings.HasPrefix(name, "/") {
			name = port + name
		}
		files[strings.TrimPrefix(name, "/")] = text
	}
	return files
}

// status is /proc/self/status with one line.
func status(line string) map[string]string {
	return map[string]string{"proc/self/status": "Name:\tdoctor\n" + line + "\n"}
}

func meminfo(lines string) map[string]string { return map[string]string{"proc/meminfo": lines} }

// scope is a machine with Yama.
func scope(n string) map[string]string {
	return map[string]string{"proc/sys/kernel/yama/ptrace_scope": n + "\n", "proc/self/status": "CapEff:\t0000000000000000\n"}
}

// Replacements of parts of a system.
func limited(soft uint64) func(*system) {
	return func(s *system) { s.limit = func(resource) (limits, bool) { return limits{soft, soft}, true } }
}

// locking refuses locks of more than most bytes.
func locking(most int, soft uint64) func(*system) {
	return func(s *system) {
		limited(soft)(s)
		s.lock = func(b []byte) error {
			if len(b) > most {
				return fmt.Errorf("lock: %w", syscall.ENOMEM)
			}
			return hostmem.Lock(b)
		}
	}
}

// linked has the interfaces lo and eth7; change changes eth7.
func linked(change func(*networkInterface)) func(*system) {
	return func(s *system) {
		lo := networkInterface{net.Interface{Name: "lo", MTU: 65536, Flags: net.FlagUp | net.FlagLoopback | net.FlagRunning}, []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
		eth := networkInterface{net.Interface{Name: "eth7", MTU: 1500, Flags: net.FlagUp | net.FlagRunning}, []netip.Addr{netip.MustParseAddr("192.0.2.7")}}
		change(&eth)
		s.interfaces = func() ([]networkInterface, error) { return []networkInterface{lo, eth}, nil }
	}
}

func dialing(err error) func(*system) {
	return func(s *system) {
		s.dial = func(context.Context, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
		}
	}
}

// named is a host called "me", which resolves to these addresses.
func named(err error, addrs ...string) func(*system) {
	return func(s *system) {
		linked(func(*networkInterface) {})(s)
		s.hostname = func() (string, error) { return "me", nil }
		s.resolve = func(context.Context, string) ([]netip.Addr, error) {
			var list []netip.Addr
			for _, a := range addrs {
				list = append(list, netip.MustParseAddr(a))
			}
			return list, err
		}
	}
}

// opening has one RDMA device.
func opening(unfit error, open func() (*auto.Device, error)) func(*system) {
	return func(s *system) {
		s.devices = func() ([]deviceOpener, error) { return []deviceOpener{{"mlx5_0", unfit, open}}, nil }
	}
}

// faults are machines with one fault each. The test runs the probe on the machine as it is, with the files in place of those below the
// root, if there are any, and with the change.
var faults = []struct {
	name   string
	probe  string
	files  map[string]string
	change func(*system)
	want   finding
}{
	{"locking is refused", "memlock", nil, locking(0, 0), finding{Level: levelFault, Finding: "no memory can be locked", Cause: "RLIMIT_MEMLOCK is 0 B", Remedy: "ulimit -l"}},
	{"little can be locked", "memlock", nil, locking(256<<10, 300<<10), finding{Level: levelWarning, Finding: "only 256 KiB", Remedy: "CAP_IPC_LOCK"}},
	{"less can be locked than the limit says", "memlock", nil, locking(1<<20, hostmem.Unlimited), finding{Level: levelWarning, Finding: "although RLIMIT_MEMLOCK is unlimited", Cause: "cannot allocate", Remedy: "control group"}},
	{"hardware may need more", "memlock", nil, locking(16<<20, 16<<20), finding{Level: levelNote, Finding: "16 MiB can be locked", Remedy: "ulimit -l"}},
	{"hardware needs more", "memlock", portFiles(nil), locking(16<<20, 16<<20), finding{Level: levelWarning, Finding: "only 16 MiB", Remedy: "ulimit -l"}},
	{"no memory is left", "memory", meminfo("MemTotal: 8000000 kB\nMemAvailable: 16384 kB\n"), nil, finding{Level: levelFault, Finding: "16 MiB of 7.6 GiB", Remedy: "--max-memory"}},
	{"little memory is left", "memory", meminfo("MemTotal: 8000000 kB\nMemAvailable: 131072 kB\n"), nil, finding{Level: levelWarning, Finding: "128 MiB", Remedy: "end other processes"}},
	{"all huge pages are in use", "hugepages", meminfo("HugePages_Total: 64\nHugePages_Free: 0\nHugepagesize: 2048 kB\n"), nil, finding{Level: levelWarning, Finding: "all 64 huge pages of 2048 kB", Remedy: "vm.nr_hugepages"}},
	{"transparent huge pages are off", "hugepages", map[string]string{"proc/meminfo": "HugePages_Total: 0\n", "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}, nil, finding{Level: levelNote, Finding: "transparent huge pages are off", Remedy: "echo madvise"}},
	{"a control group with too little memory", "cgroup", groupFiles(map[string]string{"memory.max": "16777216"}), nil, finding{Level: levelFault, Finding: "16 MiB of memory", Cause: "/sys/fs/cgroup/run/memory.max", Remedy: "MemoryMax="}},
	{"a control group with little memory", "cgroup", groupFiles(map[string]string{"memory.max": "134217728"}), nil, finding{Level: levelWarning, Finding: "128 MiB", Remedy: "--memory"}},
	{"a control group that is nearly full", "cgroup", groupFiles(map[string]string{"memory.max": "1073741824", "memory.current": "1063741824"}), nil, finding{Level: levelWarning, Finding: "1.0 GiB", Cause: "are in use", Remedy: "resources.limits.memory"}},
	{"a control group full of cached files", "cgroup", groupFiles(map[string]string{"memory.max": "1073741824", "memory.current": "1063741824", "memory.stat": "anon 9\ninactive_file 600000000\nactive_file 300000000"}), nil, finding{Level: levelNote, Finding: "1.0 GiB", Cause: "156 MiB are in use besides cached files"}},
	{"a full control group of version 1", "cgroup", map[string]string{"proc/self/cgroup": "4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1063741824", "sys/fs/cgroup/memory/x/memory.stat": "inactive_file 5\ntotal_inactive_file 900000000\n"}, nil,
		finding{Level: levelNote, Finding: "1.0 GiB", Cause: "156 MiB are in use besides cached files"}},
	{"a control group that is not mounted", "cgroup", map[string]string{"proc/self/cgroup": "0::/x\n"}, nil, finding{Level: levelNotTried, Finding: "no directory"}},
	{"locks within a small control group", "memlock", groupFiles(map[string]string{"memory.max": "33554432", "memory.current": "16777216"}), nil, finding{Level: levelOK, Finding: "1.0 MiB can be locked"}},
	{"a control group with half a processor", "cgroup", groupFiles(map[string]string{"cpu.max": "50000 100000"}), nil, finding{Level: levelWarning, Finding: "0.50 processors", Cause: "/sys/fs/cgroup/run/cpu.max", Remedy: "CPUQuota="}},
	{"half a processor by version 1", "cgroup", map[string]string{"proc/self/cgroup": "3:cpu,cpuacct:/x\n0::/\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000"}, nil,
		finding{Level: levelWarning, Finding: "0.50 processors", Cause: "cpu.cfs_quota_us", Remedy: "--cpus"}},
	{"a control group with few threads", "cgroup", groupFiles(map[string]string{"pids.max": "100", "pids.current": "90"}), nil, finding{Level: levelWarning, Finding: "only 10 further threads", Remedy: "TasksMax="}},
	{"more threads than processors", "gomaxprocs", groupFiles(map[string]string{"cpu.max": "250000 100000"}), func(s *system) { s.procs = func() int { return 8 } }, finding{Level: levelWarning, Finding: "8 threads at once", Remedy: "GOMAXPROCS=3"}},
	{"one thread", "gomaxprocs", groupFiles(nil), func(s *system) { s.procs = func() int { return 1 } }, finding{Level: levelNote, Finding: "one thread at once", Remedy: "second processor"}},
	{"few descriptors", "nofile", nil, limited(128), finding{Level: levelFault, Finding: "only 128 files", Remedy: "LimitNOFILE"}},
	{"some descriptors", "nofile", nil, limited(1024), finding{Level: levelWarning, Finding: "only 1024 files", Remedy: "ulimit -n"}},
	{"the machine's descriptors are in use", "nofile", map[string]string{"proc/sys/fs/file-nr": "9500\t0\t10000\n"}, limited(1 << 20), finding{Level: levelWarning, Finding: "9500 of the machine's 10000", Remedy: "fs.file-max"}},
	{"few processes", "nproc", nil, limited(64), finding{Level: levelWarning, Finding: "only 64 processes", Remedy: "ulimit -u"}},
	{"no capabilities", "capabilities", status("CapEff:\t0000000000080000"), nil, finding{Level: levelNote, Finding: "does not have CAP_IPC_LOCK", Remedy: "--cap-add IPC_LOCK"}},
	{"a filter of system calls", "seccomp", status("Seccomp:\t2"), nil, finding{Level: levelNote, Finding: "filter of system calls is active", Remedy: "process_vm_readv"}},
	{"Yama permits on request", "ptrace-scope", scope("1"), nil, finding{Level: levelNote, Finding: "processes in C", Remedy: "ptrace_scope=0"}},
	{"Yama asks for a capability", "ptrace-scope", scope("2"), nil, finding{Level: levelWarning, Finding: "CAP_SYS_PTRACE", Remedy: "ptrace_scope=0"}},
	{"Yama forbids", "ptrace-scope", scope("3"), nil, finding{Level: levelWarning, Finding: "until the next boot", Remedy: "/etc/sysctl.d"}},
	{"an unknown scope of Yama", "ptrace-scope", scope("\x1b[2J"), nil, finding{Level: levelNotTried, Finding: "no known meaning"}},
	{"no shared memory", "shm", map[string]string{"dev/": ""}, nil, finding{Level: levelFault, Finding: "/dev/shm does not exist", Remedy: "mount -t tmpfs"}},
	{"shared memory is a file", "shm", map[string]string{"dev/shm": "x"}, nil, finding{Level: levelFault, Finding: "/dev/shm is no directory", Remedy: "remove it"}},
	{"shared memory on a disk", "shm", map[string]string{"dev/shm/": ""}, nil, finding{Level: levelNote, Finding: "no tmpfs", Remedy: "mount -t tmpfs"}},
	{"names of ended processes", "sm-names", map[string]string{"dev/shm/na_sm-7-0": "12345", "dev/shm/na_sm-8-1": "", "dev/shm/na_sm-name": "", "dev/shm/na_sm-9-999": "", "proc/8/": ""}, nil, finding{Level: levelNote, Finding: "1 of 2 files of na+sm in /dev/shm are of ended processes (5 B)", Cause: "na_sm-7-0", Remedy: "cinnabar info na+sm"}},
	{"a slow source of the clock", "clock", map[string]string{clockDir + "current_clocksource": "hpet\n", clockDir + "available_clocksource": "tsc hpet acpi_pm\n"}, nil, finding{Level: levelWarning, Finding: "the clock is slow", Cause: "hpet", Remedy: "tsc hpet acpi_pm"}},
	{"a slow clock", "clock", nil, func(s *system) { s.cost = func() time.Duration { return 2 * time.Microsecond } }, finding{Level: levelWarning, Finding: "takes 2µs", Remedy: "vDSO"}},
	{"a coarse clock", "clock", nil, func(s *system) { s.resolution = func() (time.Duration, bool) { return 4 * time.Millisecond, true } }, finding{Level: levelWarning, Finding: "steps of 4ms", Remedy: "highres=on"}},
	{"a clock that was not set", "clock", nil, func(s *system) { s.now = func() time.Time { return time.Unix(0, 0) } }, finding{Level: levelWarning, Finding: "1970-01-01", Remedy: "chrony"}},
	{"no link", "interfaces", nil, linked(func(i *networkInterface) { i.Flags &^= net.FlagRunning }), finding{Level: levelWarning, Finding: "eth7 is up and has an address, and no link", Remedy: "ethtool eth7"}},
	{"a bridge without members", "interfaces", map[string]string{"sys/devices/virtual/net/eth7/": ""}, linked(func(i *networkInterface) { i.Flags &^= net.FlagRunning }), finding{Level: levelNote, Finding: "eth7 is up", Cause: "bridge"}},
	{"a small MTU of a local tunnel", "interfaces", nil, linked(func(i *networkInterface) { i.MTU, i.addrs = 1000, []netip.Addr{netip.MustParseAddr("fe80::1%eth7")} }), finding{Level: levelOK, Finding: "eth7 (MTU 1000)"}},
	{"addresses without a link", "own-addresses", nil, linked(func(i *networkInterface) { i.Flags &^= net.FlagRunning }), finding{Level: levelNotTried, Finding: "no address with a link"}},
	{"a tentative address", "own-addresses", nil, func(s *system) {
		linked(func(i *networkInterface) { i.addrs = []netip.Addr{netip.MustParseAddr("fe80::1%eth7")} })(s)
		s.listen = func(context.Context, string) (net.Listener, error) {
			return nil, os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
		}
	}, finding{Level: levelNote, Finding: "cannot be used now", Remedy: "ip -6 addr"}},
	{"a small MTU", "interfaces", nil, linked(func(i *networkInterface) { i.MTU = 576 }), finding{Level: levelWarning, Finding: "MTU of 576", Remedy: "mtu 1500"}},
	{"only loopback", "interfaces", nil, linked(func(i *networkInterface) { i.Flags = 0 }), finding{Level: levelNote, Finding: "only processes of this host", Remedy: "ip addr add"}},
	{"no default route", "routes", map[string]string{"proc/net/route": "Iface Destination Gateway Flags RefCnt Use Metric Mask\neth0 000200C0 00000000 0001 0 0 0 00FFFFFF\n",
		"proc/net/ipv6_route": strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) + " ffffffff 00000001 00000000 00200200 lo\n"}, nil, finding{Level: levelNote, Finding: "no default route", Remedy: "ip route add default"}},
	{"loopback refuses", "loopback", nil, dialing(syscall.ECONNREFUSED), finding{Level: levelFault, Finding: "127.0.0.1: refused", Remedy: "nft list ruleset"}},
	{"loopback is forbidden", "loopback", nil, dialing(syscall.EPERM), finding{Level: levelFault, Finding: "127.0.0.1: forbidden", Cause: "outgoing packets", Remedy: "iptables -S"}},
	{"an own address does not answer", "own-addresses", nil, func(s *system) {
		linked(func(i *networkInterface) { i.addrs = []netip.Addr{netip.MustParseAddr("127.0.0.2")} })(s)
		dialing(syscall.EHOSTUNREACH)(s)
	}, finding{Level: levelWarning, Finding: "127.0.0.2, an address of this host: unreachable", Remedy: "ip route get"}},
	{"a name that does not resolve", "hostname", nil, named(&net.DNSError{Err: "no such host", Name: "me", IsNotFound: true}), finding{Level: levelWarning, Finding: "me, cannot be resolved", Cause: "no such host", Remedy: "/etc/hosts"}},
	{"a name of another host", "hostname", nil, named(nil, "198.51.100.1"), finding{Level: levelWarning, Finding: "198.51.100.1, which is no address of this host", Remedy: "/etc/hosts"}},
	{"a name of loopback", "hostname", nil, named(nil, "127.0.1.1"), finding{Level: levelNote, Finding: "loopback addresses only", Cause: "127.0.1.1", Remedy: "/etc/hosts"}},
	{"a slow name server", "hostname", nil, func(s *system) {
		named(nil, "192.0.2.7")(s)
		at := time.Now()
		s.now = func() time.Time { at = at.Add(3 * time.Second); return at }
	}, finding{Level: levelWarning, Finding: "it took 3s", Remedy: "/etc/resolv.conf"}},
	{"few ports", "ports", map[string]string{"proc/sys/net/ipv4/ip_local_port_range": "60000\t60099\n"}, nil, finding{Level: levelWarning, Finding: "only 100 ports", Remedy: "ip_local_port_range="}},
	{"a short queue", "tcp", map[string]string{"proc/sys/net/core/somaxconn": "16\n"}, nil, finding{Level: levelWarning, Finding: "only 16 connections may wait", Remedy: "somaxconn=4096"}},
	{"small buffers", "tcp", map[string]string{"proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t65536\n"}, nil, finding{Level: levelWarning, Finding: "64 KiB only", Cause: "tcp_wmem", Remedy: "6291456"}},
	{"an old congestion control", "tcp", map[string]string{"proc/sys/net/ipv4/tcp_congestion_control": "reno\n", "proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic\n"}, nil, finding{Level: levelNote, Finding: "reno", Cause: "reno cubic", Remedy: "=cubic"}},
	{"no RDMA", "rdma-modules", map[string]string{"sys/": ""}, nil, finding{Level: levelNote, Finding: "no RDMA device and no kernel module", Remedy: "modprobe rdma_rxe"}},
	{"a module without a device", "rdma-modules", map[string]string{"sys/module/rdma_rxe/": ""}, nil, finding{Level: levelNote, Finding: "rdma_rxe is loaded, and no RDMA device exists", Remedy: "rdma link add"}},
	{"a device without uverbs", "rdma-modules", portFiles(nil), nil, finding{Level: levelFault, Finding: "programs cannot open RDMA devices", Cause: "mlx5_0", Remedy: "modprobe ib_uverbs"}},
	{"a device without rdma_cm", "rdma-modules", portFiles(map[string]string{"/sys/module/ib_uverbs/": ""}), nil, finding{Level: levelFault, Finding: "programs cannot connect", Remedy: "modprobe rdma_ucm"}},
	{"a device without ports", "rdma-ports", map[string]string{"sys/class/infiniband/mlx5_0/": ""}, nil, finding{Level: levelWarning, Finding: "mlx5_0 has no port", Remedy: "kernel's log"}},
	{"a port that is down", "rdma-ports", portFiles(map[string]string{"state": "1: DOWN\n", "phys_state": "3: Disabled\n"}), nil, finding{Level: levelWarning, Finding: "port 1 of mlx5_0 is not active", Cause: "3: Disabled", Remedy: "connect the cable"}},
	{"no subnet manager", "rdma-ports", portFiles(map[string]string{"state": "2: INIT\n", "link_layer": "InfiniBand\n"}), nil, finding{Level: levelWarning, Finding: "not active", Cause: "no subnet manager", Remedy: "opensm"}},
	{"no GID", "rdma-ports", portFiles(map[string]string{"gids/0": "0000:0000:0000:0000:0000:0000:0000:0000\n"}), nil, finding{Level: levelWarning, Finding: "has no GID", Remedy: "ip addr add"}},
	{"no GID of RoCE v2", "rdma-ports", portFiles(map[string]string{"gid_attrs/types/0": "IB/RoCE v1\n"}), nil, finding{Level: levelWarning, Finding: "no GID of RoCE v2", Remedy: "cma_roce_mode"}},
	{"a tiny MTU of RoCE", "rdma-ports", portFiles(map[string]string{"/sys/class/net/eth1/mtu": "1000\n"}), nil, finding{Level: levelWarning, Finding: "at most 512 bytes", Cause: "MTU of 1000", Remedy: "mtu 4200"}},
	{"a small MTU of RoCE", "rdma-ports", portFiles(map[string]string{"/sys/class/net/eth1/mtu": "1500\n"}), nil, finding{Level: levelNote, Finding: "at most 1024 bytes", Remedy: "ip link set eth1 mtu 4200"}},
	{"no files for devices", "rdma-files", portFiles(nil), nil, finding{Level: levelFault, Finding: "no file /dev/infiniband/uverbs*", Remedy: "--device=/dev/infiniband"}},
	{"a file that cannot be opened", "rdma-files", map[string]string{"sys/class/infiniband/mlx5_0/": "", "dev/infiniband/uverbs0": "->gone"}, nil, finding{Level: levelFault, Finding: "may not open /dev/infiniband/uverbs0", Cause: "no such file", Remedy: "rule of udev"}},
	{"rdma_ucm without a device", "rdma-files", map[string]string{"dev/infiniband/rdma_cm": ""}, nil, finding{Level: levelNotTried, Finding: "no RDMA device"}},
	{"a device that does not fit", "rdma-devices", nil, opening(errors.New("none of its ports is active"), nil), finding{Level: levelWarning, Finding: "mlx5_0 cannot be used", Cause: "none of its ports", Remedy: "rdma-ports"}},
	{"a device that does not open", "rdma-devices", nil, opening(nil, func() (*auto.Device, error) { return nil, syscall.EACCES }), finding{Level: levelFault, Finding: "mlx5_0 cannot be opened", Cause: "permission denied", Remedy: "rdma-files"}},
	{"an address that does not answer", "address", nil, func(s *system) { s.addresses = []string{"127.0.0.1:1"} }, finding{Level: levelFault, Finding: "127.0.0.1:1: refused", Cause: "no process listens", Remedy: "start the server"}},
	{"an engine that does not answer", "address", nil, func(s *system) { s.addresses = []string{"ofi+tcp://127.0.0.1:1"} }, finding{Level: levelFault, Finding: "refused", Remedy: "start the server"}},
	{"an address without a route", "address", nil, func(s *system) { dialing(syscall.ENETUNREACH)(s); s.addresses = []string{"198.51.100.1:5"} }, finding{Level: levelFault, Finding: "198.51.100.1:5: unreachable", Remedy: "ip route get"}},
	{"an address that drops packets", "address", nil, func(s *system) { dialing(syscall.ETIMEDOUT)(s); s.addresses = []string{"198.51.100.1:5"} }, finding{Level: levelFault, Finding: "198.51.100.1:5: timed out", Cause: "drop rule", Remedy: "nft list ruleset"}},
	{"an address that resets", "address", nil, func(s *system) { dialing(syscall.ECONNRESET)(s); s.addresses = []string{"198.51.100.1:5"} }, finding{Level: levelFault, Finding: "198.51.100.1:5: reset", Remedy: "log of the server"}},
	{"the network of a combined address", "address", nil, func(s *system) { s.addresses = []string{"uid://1#na+sm://1-0#ofi+tcp://127.0.0.1:1"} }, finding{Level: levelFault, Finding: "refused"}},
	{"a shared memory of no process", "address", nil, func(s *system) { s.addresses = []string{"na+sm://999999999-0"} }, finding{Level: levelFault, Finding: "na+sm://999999999-0 does not answer a call", Remedy: "cinnabar ping"}},
}

// Faults that parts of a system feign, and states of ordinary machines that are none.
// parity: Y03 P02
func TestProvokedFaults(t *testing.T) {
	for _, tc := range faults {
		t.Run(tc.name, func(t *testing.T) {
			for i := range probes {
				if probes[i].name == tc.probe && probes[i].linux && runtime.GOOS != "linux" {
					t.Skip("linux only")
				}
			}
			sys := thisSystem()
			if tc.files != nil {
				sys.root = tree(t, tc.files)
			}
			if tc.change != nil {
				tc.change(sys)
			}
			tc.want.Probe = tc.probe
			found := examination(t, sys, tc.probe)
			wantFinding(t, found, tc.want)
			for _, f := range found {
				if tc.want.Level.rank() == 0 && f.Level.rank() > 0 {
					t.Errorf("%+v on a machine without a fault", f)
				}
			}
		})
	}
}

// A name that does not resolve, in an address.
func TestUnknownHost(t *testing.T) {
	kind, cause, remedy := unreachable(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere.invalid"}})
	if kind != "name not resolved" || !strings.Contains(cause, "nowhere.invalid") || !strings.Contains(remedy, "/etc/hosts") {
		t.Errorf("%q, %q, %q", kind, cause, remedy)
	}
}

// Addresses of servers that answer: a plain one, and engines.
func TestAddresses(t *testing.T) {
	e := clitest.Engine(t, nil)
	sys := thisSystem()
	sys.addresses = []string{e.Addr(), strings.TrimPrefix(e.Addr(), "ofi+tcp://")}
	found := examination(t, sys, addressProbe)
	wantFinding(t, found, finding{Probe: addressProbe, Level: levelOK, Finding: e.Addr() + " answered a call"})
	wantFinding(t, found, finding{Probe: addressProbe, Level: levelOK, Finding: "accepts connections"})
}

// An engine with shared memory beside its network has an address that combines both.
func TestCombinedAddress(t *testing.T) {
	sys := thisSystem()
	if sm := examination(t, sys, "na+sm")[0]; sm.Level != levelOK {
		t.Skipf("no shared memory: %+v", sm)
	}
	sys.addresses = []string{clitest.Engine(t, &cinnabar.Config{AutoSM: true}).Addr()}
	wantFinding(t, examination(t, sys, addressProbe), finding{Probe: addressProbe, Level: levelOK, Finding: sys.addresses[0] + " answered a call"})
}

// A server that accepts connections and speaks another protocol, or none.
func TestAddressOfAnotherProtocol(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			c.Close()
		}
	}()
	defer func() {
		l.Close()
		<-done
	}()
	sys := thisSystem()
	sys.addresses = []string{"ofi+tcp://" + l.Addr().String()}
	wantFinding(t, examination(t, sys, addressProbe), finding{Probe: addressProbe, Level: levelFault, Finding: "accepts connections, and does not answer a call", Remedy: "serves this protocol"})
}

// An RDMA device that works; the software device stands for it.
func TestWorkingDevice(t *testing.T) {
	sys := thisSystem()
	opening(nil, func() (*auto.Device, error) { return auto.Software(nil) })(sys)
	wantFinding(t, examination(t, sys, "rdma-devices"), finding{Probe: "rdma-devices", Level: levelOK, Finding: "registered memory, written and called"})
}
