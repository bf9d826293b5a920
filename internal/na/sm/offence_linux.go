package sm

import "time"

// Limits on the faulty commands that the server describes in log and audit. A description takes several times as long as the
// reading of the command, and the socket holds few commands (net.unix.max_dgram_qlen, 10), so a server that described each one
// would leave the socket full, and other clients could not connect.
const (
	maxFaults   = 32                     // described commands of one process in one faultWindow; the rest is only counted
	faultWindow = 250 * time.Millisecond // after this time the counts of all processes start at 0 again
	maxFaulty   = 256                    // processes with a count of their own; commands of others are not described
)

// offenders counts the faulty commands of each process in the present window. The kernel names the senders. The poller owns it.
type offenders struct {
	since  time.Time     // begin of the window
	faults map[int32]int // by process id; processes of other PID namespaces share id 0
}

// note counts a faulty command of process pid. It returns the process's count in this window, or 0 if the process has no count of
// its own.
func (o *offenders) note(pid int32) int {
	if _, known := o.faults[pid]; !known && len(o.faults) >= maxFaulty {
		return 0
	}
	if o.faults == nil {
		o.faults = make(map[int32]int)
	}
	o.faults[pid]++
	return o.faults[pid]
}

// refresh starts a new window if the present one has ended.
func (o *offenders) refresh(now time.Time) {
	if now.Sub(o.since) >= faultWindow {
		o.since = now
		clear(o.faults)
	}
}
