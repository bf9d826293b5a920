package sm

import "time"

// Bounds on the faulty commands of one process that are described. The description costs several times as much as reading the
// command, and the socket holds so few commands (net.unix.max_dgram_qlen, 10) that a server which refuses them slowly
// keeps it full, and honest processes out.
const (
	maxFaults   = 32                     // of one process in faultWindow; later ones are only counted
	faultWindow = 250 * time.Millisecond // after which all processes begin anew
	maxFaulty   = 256                    // processes that are counted at once; faults of further ones are only counted
)

// offenders counts the faulty commands of each process, as the kernel names the senders. It is the poller's.
type offenders struct {
	since  time.Time
	faults map[int32]int // by process; those of other PID namespaces are one (0)
}

// note counts a faulty command, and reports how many there are of the process in this window, 0 if it is not counted.
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

// refresh begins a new window if the present one is over.
func (o *offenders) refresh(now time.Time) {
	if now.Sub(o.since) >= faultWindow {
		o.since = now
		clear(o.faults)
	}
}
