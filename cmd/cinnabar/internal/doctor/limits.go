package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/hostmem"
)

// Least limits on descriptors and processes.
const (
	filesFault     = 256  // descriptors; with fewer an engine can serve only some tens of connections
	filesWarning   = 4096 // descriptors; a server needs two for each connection
	processesLeast = 256  // threads of all programs of this user
	pidsLeft       = 64   // threads that the control group still allows
)

// count prints a limit that is a number.
func count(n uint64) string {
	if n == hostmem.Unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

func probeFiles(_ context.Context, x *exam) {
	l, ok := x.limit(resourceFiles)
	if !ok {
		x.notTried("the limit RLIMIT_NOFILE cannot be read")
		return
	}
	const remedy = "ulimit -n 65536, nofile in /etc/security/limits.conf, LimitNOFILE=65536 in a systemd unit, or --ulimit nofile=65536 for a container"
	cause := fmt.Sprintf("RLIMIT_NOFILE is %s (hard limit %s), and a connection takes 2 or more", count(l.soft), count(l.hard))
	switch {
	case l.soft < filesFault:
		x.add(levelFault, fmt.Sprintf("a process may open only %d files and connections", l.soft), cause, remedy)
	case l.soft < filesWarning:
		x.add(levelWarning, fmt.Sprintf("a process may open only %d files and connections", l.soft), cause, remedy)
	default:
		x.ok("a process may open %s files and connections", count(l.soft))
	}
	fields := strings.Fields(x.word("proc/sys/fs/file-nr")) // allocated, 0, the limit of the machine
	if len(fields) != 3 {
		return
	}
	used, err := strconv.ParseUint(fields[0], 10, 64)
	most, mostErr := strconv.ParseUint(fields[2], 10, 64)
	if err == nil && mostErr == nil && used/9 >= most/10 {
		x.add(levelWarning, fmt.Sprintf("%d of the machine's %d open files are in use", used, most), "fs.file-max is "+fields[2], "sysctl fs.file-max=N with a larger N")
	}
}

func probeProcesses(_ context.Context, x *exam) {
	l, ok := x.limit(resourceProcesses)
	switch {
	case !ok:
		x.notTried("the limit RLIMIT_NPROC cannot be read")
	case l.soft < processesLeast:
		x.add(levelWarning, fmt.Sprintf("this user may have only %d processes and threads", l.soft), "RLIMIT_NPROC is "+count(l.soft)+"; it does not bind root",
			"ulimit -u, nproc in /etc/security/limits.conf, or LimitNPROC= in a systemd unit")
	default:
		x.ok("this user may have %s processes and threads", count(l.soft))
	}
}

// capabilities are those of capability.h on which a probe depends, with their bits.
var capabilities = []struct {
	name string
	bit  uint
	use  string
}{
	{"CAP_IPC_LOCK", 14, "it lifts the limit on locked memory"},
	{"CAP_SYS_PTRACE", 19, "it permits access to the memory of all processes for na+sm"},
}

func probeCapabilities(_ context.Context, x *exam) {
	text, ok := field(x.word("proc/self/status"), "CapEff")
	mask, err := strconv.ParseUint(text, 16, 64)
	if !ok || err != nil {
		x.notTried("/proc/self/status has no mask CapEff")
		return
	}
	for _, c := range capabilities {
		if mask>>c.bit&1 != 0 {
			x.ok("this process has %s", c.name)
			continue
		}
		x.add(levelNote, "this process does not have "+c.name, fmt.Sprintf("it runs as uid %d with the capabilities %x", os.Geteuid(), mask),
			fmt.Sprintf("none, unless memlock or attach has a finding: %s; --cap-add %s for a container, AmbientCapabilities= in a systemd unit", c.use, strings.TrimPrefix(c.name, "CAP_")))
	}
}

func probeSeccomp(_ context.Context, x *exam) {
	switch mode, ok := field(x.word("proc/self/status"), "Seccomp"); {
	case !ok:
		x.notTried("/proc/self/status has no line Seccomp")
	case mode == "0":
		x.ok("no filter of system calls is active")
	default:
		x.add(levelNote, "a filter of system calls is active", "Seccomp in /proc/self/status is "+mode, "none, unless attach has a finding: let process_vm_readv and process_vm_writev through")
	}
}

// groupDirs returns the directories of this process's control group and of its parents for a controller, and whether they are of
// version 2.
func (s *system) groupDirs(controller string) (dirs []string, second bool) {
	for line := range strings.Lines(s.word("proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(fields) != 3 {
			continue
		}
		base := "sys/fs/cgroup"
		switch {
		case strings.Contains(","+fields[1]+",", ","+controller+","):
			base = filepath.Join(base, controller)
		case fields[1] != "" || len(dirs) > 0:
			continue
		}
		version2 := fields[1] == ""
		var found []string
		for dir := filepath.Clean("/" + fields[2]); ; dir = filepath.Dir(dir) {
			if at := filepath.Join(base, dir); s.exists(at) {
				found = append(found, at)
			}
			if dir == "/" {
				break
			}
		}
		if len(found) > 0 {
			dirs, second = found, version2
		}
	}
	return dirs, second
}

// groupLimit is a limit of a control group.
type groupLimit struct {
	file string // the file that has the limit
	most int64
	used int64 // in the unit of most; -1: not known
}

// leastLimit returns the limit that leaves the least room; ok is false if there is none. file and used have the names of the files in versions 1 and 2
// of control groups.
func (s *system) leastLimit(controller string, file, used [2]string) (least groupLimit, ok bool) {
	const unlimited = 1 << 62 // version 1 writes a number above where there is no limit
	dirs, second := s.groupDirs(controller)
	version := 0
	if second {
		version = 1
	}
	for _, dir := range dirs {
		n, found := s.number(filepath.Join(dir, file[version]))
		if !found || n < 0 || n >= unlimited {
			continue
		}
		l := groupLimit{"/" + filepath.Join(dir, file[version]), n, -1}
		if u, found := s.number(filepath.Join(dir, used[version])); found {
			l.used = max(u-s.cachedFiles(filepath.Join(dir, "memory.stat")), 0)
		}
		if !ok || l.most-l.used < least.most-least.used {
			least, ok = l, true
		}
	}
	return least, ok
}

// memoryLimit returns the limit on memory of the control groups that leaves the least room.
func (s *system) memoryLimit() (groupLimit, bool) {
	return s.leastLimit("memory", [2]string{"memory.limit_in_bytes", "memory.max"}, [2]string{"memory.usage_in_bytes", "memory.current"})
}

// cachedFiles returns the bytes of cached files in a file memory.stat, or 0 without that file. A control group counts them as used, and the
// kernel frees them when processes need memory. Version 1 has the numbers of the group alone beside those with its children, which begin with
// "total_".
func (s *system) cachedFiles(name string) int64 {
	var alone, total int64
	for line := range strings.Lines(s.word(name)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 50)
		if err != nil || n < 0 {
			continue
		}
		switch key {
		case "inactive_file", "active_file":
			alone += n
		case "total_inactive_file", "total_active_file":
			total += n
		}
	}
	return max(alone, total)
}

// quota returns the processors that the control groups allow, and the file that says so. ok is false without a limit.
func (s *system) quota() (cpus float64, file string, ok bool) {
	dirs, second := s.groupDirs("cpu")
	for _, dir := range dirs {
		name := filepath.Join(dir, "cpu.cfs_quota_us")
		most, period := s.word(name), s.word(filepath.Join(dir, "cpu.cfs_period_us"))
		if second {
			name = filepath.Join(dir, "cpu.max")
			most, period, _ = strings.Cut(s.word(name), " ")
		}
		m, err := strconv.ParseFloat(most, 64)
		p, periodErr := strconv.ParseFloat(period, 64)
		if err == nil && periodErr == nil && m > 0 && p > 0 && (!ok || m/p < cpus) {
			cpus, file, ok = m/p, "/"+name, true
		}
	}
	return cpus, file, ok
}

func probeCgroup(_ context.Context, x *exam) {
	if x.word("proc/self/cgroup") == "" {
		x.notTried("/proc/self/cgroup cannot be read, or is empty")
		return
	}
	before := len(x.found)
	if l, ok := x.memoryLimit(); ok {
		text := fmt.Sprintf("the control group may use %s of memory", cli.SizeText(l.most))
		cause := l.file
		if l.used >= 0 {
			cause += fmt.Sprintf(", of which %s are in use besides cached files", cli.SizeText(l.used))
		}
		const remedy = "raise the limit: MemoryMax= in a systemd unit, --memory for a container, resources.limits.memory in Kubernetes"
		switch {
		case l.most < noMemory:
			x.add(levelFault, text+", and an engine needs "+cli.SizeText(noMemory), cause, remedy)
		case l.most < lowMemory || l.used >= 0 && l.used/9 >= l.most/10:
			x.add(levelWarning, text, cause, remedy+"; registered memory counts")
		default:
			x.add(levelNote, text, cause, "none, unless memory runs out; "+remedy)
		}
	}
	if cpus, file, ok := x.quota(); ok {
		l, text := levelNote, fmt.Sprintf("the control group may use %.2f processors", cpus)
		if cpus < 1 {
			l = levelWarning
			text += ", so that its processes pause in each period, and latencies grow by tens of milliseconds"
		}
		x.add(l, text, file, "raise the limit: CPUQuota= in a systemd unit, --cpus for a container, resources.limits.cpu in Kubernetes")
	}
	if l, ok := x.leastLimit("pids", [2]string{"pids.max", "pids.max"}, [2]string{"pids.current", "pids.current"}); ok && l.used >= 0 && l.most-l.used < pidsLeft {
		x.add(levelWarning, fmt.Sprintf("the control group may start only %d further threads", max(l.most-l.used, 0)), fmt.Sprintf("%s is %d", l.file, l.most),
			"raise the limit: TasksMax= in a systemd unit, --pids-limit for a container")
	}
	memory, _ := x.groupDirs("memory")
	cpu, _ := x.groupDirs("cpu")
	switch {
	case len(x.found) > before:
	case len(memory) == 0 && len(cpu) == 0:
		x.notTried("/sys/fs/cgroup has no directory of this process's control group")
	default:
		x.ok("the control group has no limit on memory and processors, and threads are left")
	}
}

func probeProcs(_ context.Context, x *exam) {
	n := x.procs()
	cpus, file, ok := x.quota()
	switch most := max(int(cpus+0.999), 2); { // Go itself takes at least 2
	case ok && n > most:
		x.add(levelWarning, fmt.Sprintf("Go runs %d threads at once, and the control group may use %.2f processors", n, cpus),
			file+" limits processors, and GOMAXPROCS is set in the environment", fmt.Sprintf("GOMAXPROCS=%d, or unset it: Go then follows the quota", most))
	case n == 1:
		x.add(levelNote, "Go runs one thread at once", fmt.Sprintf("GOMAXPROCS is 1; the machine has %d processors for this process", runtime.NumCPU()),
			"give the process a second processor: with one, a waiting caller and its server take turns")
	default:
		x.ok("Go runs %d threads at once on %d processors", n, runtime.NumCPU())
	}
}
