package iwarp

import (
	"sync/atomic"

	"cinnabar/internal/audit"
	"cinnabar/verbs"
)

// rxStats and txStats are counted by a connection under its locks.
type rxStats struct {
	bytes      uint64 // from the socket, headers included
	fpdus      uint64
	calls      uint64 // successful reads of the socket
	staged     uint64 // payload bytes that went through a buffer of ours
	held       uint64 // payload bytes that waited for a receive
	terminates uint64
	wakeups    uint64 // of the background reader
	// Guesses in read responses that were wrong, and system calls that were to have guesses and had none; see run.
	wrongGuesses, refusedGuesses uint32
}

type txStats struct {
	bytes      uint64
	fpdus      uint64
	calls      uint64
	staged     uint64 // payload bytes copied before they were sent (read responses under CRC)
	terminates uint64
}

// stats are the totals of a device. rx and tx are those of connections that are over.
type stats struct {
	connections atomic.Uint64
	rejects     atomic.Uint64
	rx          [9]atomic.Uint64
	tx          [5]atomic.Uint64
}

func (s *rxStats) list() [9]uint64 {
	return [9]uint64{s.bytes, s.fpdus, s.calls, s.staged, s.held, s.terminates, s.wakeups, uint64(s.wrongGuesses), uint64(s.refusedGuesses)}
}

func (s *txStats) list() [5]uint64 {
	return [5]uint64{s.bytes, s.fpdus, s.calls, s.staged, s.terminates}
}

var (
	rxNames = [9]string{"rx_bytes", "rx_fpdus", "rx_calls", "rx_staged_bytes", "rx_held_bytes", "rx_terminates", "rx_wakeups",
		"rx_wrong_guesses", "rx_refused_guesses"}
	txNames = [5]string{"tx_bytes", "tx_fpdus", "tx_calls", "tx_staged_bytes", "tx_terminates"}
)

// auditNames are the names of the counters of audit events.
var auditNames = map[audit.Event]string{
	audit.Accepted: "accepted", audit.Evicted: "evicted", audit.Refused: "refused", audit.Denied: "denied",
	audit.Invalidated: "invalidated", audit.Broken: "broken",
}

// fold adds the counts of a connection when its goroutines have ended.
func (s *stats) fold(c *conn) {
	rx, tx := c.counts()
	for i, n := range rx {
		s.rx[i].Add(n)
	}
	for i, n := range tx {
		s.tx[i].Add(n)
	}
}

// counts returns a consistent picture of each direction.
func (c *conn) counts() ([9]uint64, [5]uint64) {
	c.rxMu.Lock()
	rx := c.rxStats.list()
	c.rxMu.Unlock()
	c.txMu.Lock()
	tx := c.txStats.list()
	c.releaseTx()
	return rx, tx
}

// Stats implements verbs.DeviceDriver. The names are:
//
//   - rx_bytes, tx_bytes, rx_fpdus, tx_fpdus: bytes and FPDUs that crossed the sockets;
//   - rx_calls, tx_calls: system calls that moved something;
//   - rx_staged_bytes, tx_staged_bytes: payload that was copied in user space;
//   - rx_held_bytes: payload that waited for a receive to be posted;
//   - rx_wakeups: how often a background reader was woken by data;
//   - rx_wrong_guesses: number of wrong guesses in read responses: the FPDU that came had another place than guessed, or was no segment of that
//     response, so the bytes behind its head were copied (docs/adr/0060);
//   - rx_refused_guesses: system calls that read one FPDU of a read response because guesses were refused: the sink was exposed to reads of peers,
//     a peer wrote to it, the memory has many regions, or the host had no room in Config.MaxMemory;
//   - rx_terminates, tx_terminates, connections, rejects, regions;
//   - quota_R, quota_R_limit, quota_R_refused: how much of R (connections, handshakes, memory in bytes) all remote
//     hosts hold, may hold, and how often more was refused;
//   - handshakes_delayed: handshakes that had to wait because others of their host have failed;
//   - audit_E: how often event E (accepted, evicted, refused, denied, invalidated, broken) occurred.
func (d *device) Stats() verbs.Stats {
	d.mu.Lock()
	conns := make([]*conn, 0, len(d.conns))
	for c := range d.conns {
		conns = append(conns, c)
	}
	out := make(verbs.Stats, len(rxNames)+len(txNames)+3)
	for i, name := range rxNames {
		out[name] = d.stats.rx[i].Load()
	}
	for i, name := range txNames {
		out[name] = d.stats.tx[i].Load()
	}
	d.mu.Unlock()
	for _, c := range conns {
		rx, tx := c.counts()
		for i, n := range rx {
			out[rxNames[i]] += n
		}
		for i, n := range tx {
			out[txNames[i]] += n
		}
	}
	out["connections"] = d.stats.connections.Load()
	out["rejects"] = d.stats.rejects.Load()
	out["regions"] = uint64(d.keys.count())
	d.quotaStats(out)
	for _, n := range d.trail.Counts() {
		out["audit_"+auditNames[n.Event]] += n.N
	}
	return out
}
