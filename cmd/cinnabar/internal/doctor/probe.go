package doctor

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// level is the severity of a finding.
type level string

const (
	levelOK       level = "ok"
	levelNotTried level = "not tried" // the probe could not run, so nothing is known
	levelNote     level = "note"      // worth knowing: hardware that is missing, a default that limits a special use
	levelWarning  level = "warning"   // something works slowly, in part, or will fail soon
	levelFault    level = "fault"     // something does not work
)

// rank orders levels by the exit code that they cause.
func (l level) rank() int {
	switch l {
	case levelFault:
		return 2
	case levelWarning:
		return 1
	default:
		return 0
	}
}

// finding is one result of a probe. Its texts have no characters that a terminal acts upon and at most maxText bytes each, because they quote
// names and files of other users.
type finding struct {
	Probe   string `json:"probe"`
	Level   level  `json:"level"`
	Finding string `json:"finding"`
	Cause   string `json:"cause,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// Bounds of the output.
const (
	maxText     = 1000 // bytes of a text
	maxFindings = 100  // of one probe
)

// clean returns text on one line, without characters that a terminal acts upon, and of at most maxText bytes.
func clean(text string) string {
	text = cli.Printable(strings.ReplaceAll(text, "\n", "; "))
	if len(text) > maxText {
		const dots = "..."
		text = strings.ToValidUTF8(text[:maxText-len(dots)], "") + dots
	}
	return text
}

// probe tries one part of the machine.
type probe struct {
	name  string
	about string // for --list
	linux bool   // it needs Linux
	run   func(ctx context.Context, x *exam)
}

// exam is one run of a probe. A probe calls its methods on one goroutine.
type exam struct {
	*system
	probe string
	found []finding
}

func (x *exam) add(l level, text, cause, remedy string) {
	if len(x.found) < maxFindings {
		x.found = append(x.found, finding{x.probe, l, clean(text), clean(cause), clean(remedy)})
	}
}

func (x *exam) ok(format string, args ...any) { x.add(levelOK, fmt.Sprintf(format, args...), "", "") }

// notTried adds the finding that the probe could not run, with the reason.
func (x *exam) notTried(format string, args ...any) {
	x.add(levelNotTried, fmt.Sprintf(format, args...), "", "")
}

// probes are all probes in the order in which they run. The order matters in two cases: sm-names runs before na+sm, because an engine on na+sm removes
// the files of ended processes, and attach runs before any engine, because an engine on na+sm permits access to this process.
var probes = []probe{
	{"memlock", "lock memory of growing sizes", true, probeMemlock},
	{"memory", "free memory of the machine", true, probeMemory},
	{"hugepages", "huge pages", true, probeHugePages},
	{"cgroup", "limits of the control group on memory, processors and processes", true, probeCgroup},
	{"gomaxprocs", "threads of Go's scheduler beside the processor quota", false, probeProcs},
	{"nofile", "limits on open descriptors", true, probeFiles},
	{"nproc", "limit on processes and threads", true, probeProcesses},
	{"capabilities", "CAP_IPC_LOCK and CAP_SYS_PTRACE", true, probeCapabilities},
	{"seccomp", "filters of system calls", true, probeSeccomp},
	{"ptrace-scope", "Yama's limit on access to other processes", true, probePtraceScope},
	{"attach", "read and write the memory of another process", true, probeAttach},
	{"shm", "rights, size and free space of /dev/shm", true, probeShm},
	{"tmp", "rights and free space of /tmp, where na+sm has its sockets", true, probeTmp},
	{"sm-names", "names that ended processes on na+sm left", true, probeNames},
	{"clock", "source, resolution and cost of the clock", false, probeClock},
	{"interfaces", "network interfaces, their state and MTU", false, probeInterfaces},
	{"routes", "default routes", true, probeRoutes},
	{"loopback", "connect by the loopback addresses", false, probeLoopback},
	{"own-addresses", "connect by the other addresses of this host", false, probeOwnAddresses},
	{"hostname", "resolve the name of this host", false, probeHostname},
	{"ports", "ports for outgoing connections", true, probePorts},
	{"tcp", "congestion control, queue and buffers of TCP", true, probeTCP},
	{"rdma-modules", "kernel modules for RDMA", true, probeModules},
	{"rdma-ports", "state, GIDs and MTU of the ports of RDMA devices", true, probeRDMAPorts},
	{"rdma-files", "rights of the files in /dev/infiniband", true, probeRDMAFiles},
	{"rdma-devices", "open RDMA devices, register memory, call over them", true, probeRDMADevices},
	{"software-device", "register memory and write it on the software device", false, probeSoftware},
	{"ofi+tcp", "call with a bulk transfer over ofi+tcp", false, probeOfiTCP},
	{"na+sm", "call with a bulk transfer over na+sm", true, probeSM},
	{"ofi+verbs", "call with a bulk transfer over ofi+verbs on the software device", false, probeOfiVerbs},
	{addressProbe, "reach each ADDRESS", false, probeAddresses},
}

// grace is the time that a probe has to clean up after its time-out. It is short, so that ^C ends the command within a second.
const grace = 300 * time.Millisecond

// examine runs one probe for at most timeout. A probe that does not return in time is left behind, and its findings are not used. The
// error is the cause of the end of ctx.
func (p *probe) examine(ctx context.Context, s *system, timeout time.Duration) ([]finding, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	x := &exam{system: s, probe: p.name}
	if p.linux && runtime.GOOS != "linux" {
		x.notTried("linux only")
		return x.found, nil
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	done, tried := make(chan struct{}), x
	go func() { // ends with the probe, at the latest with the process
		defer close(done)
		p.run(limited, tried)
	}()
	if !returned(limited, done) {
		x = &exam{system: s, probe: p.name}
		x.add(levelWarning, fmt.Sprintf("the probe has no result after %v", timeout), "a system call or a server does not answer",
			"try again with a longer --timeout, or leave the probe out with --skip "+p.name)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(x.found) == 0 {
		x.notTried("the probe has nothing to try")
	}
	return x.found, nil
}

// returned waits until done is closed, at most until grace after the end of ctx, and reports whether it is.
func returned(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
