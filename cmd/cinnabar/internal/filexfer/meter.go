package filexfer

import (
	"sync"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/xfer"
)

const (
	lookInterval = time.Second // between looks at the transfers under way
	newestShare  = 0.3         // of the newest look in the rate that programs get
)

// meter measures one transfer, and reports it in lines: to people now and then, and to programs at each look. A goroutine of the reporter
// looks at it, so that lines come while nothing moves too.
type meter struct {
	r     *reporter
	lines bool // for people

	mu sync.Mutex
	// +checklocks:mu
	name, peer string
	// of the whole file; -1: not known
	// +checklocks:mu
	size int64
	// +checklocks:mu
	done int64
	// when the transfer began, when bytes last moved, and when a line was last printed
	// +checklocks:mu
	begun, moved, printed time.Time
	// the look before
	// +checklocks:mu
	looked time.Time
	// bytes done then
	// +checklocks:mu
	doneThen int64
	// bytes per second, of the last looks
	// +checklocks:mu
	rate float64
}

// Start implements [xfer.Progress].
func (m *meter) Start(res xfer.Result) {
	if m.lines {
		m.r.noteStart(res)
	}
	m.mu.Lock()
	m.name, m.peer, m.size = res.Name, res.Peer.String(), res.Size
	m.begun = m.r.now()
	m.moved, m.printed, m.looked = m.begun, m.begun, m.begun
	m.mu.Unlock()
	m.r.addMeter(m)
}

// Advance implements [xfer.Progress].
func (m *meter) Advance(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.moved = m.r.now()
	m.lineLocked(m.moved)
}

// Finish implements [xfer.Progress]. The caller of the transfer prints the result.
func (m *meter) Finish(xfer.Result, error) { m.r.removeMeter(m) }

// lineLocked prints a line if it is time for one.
//
// +checklocks:m.mu
func (m *meter) lineLocked(now time.Time) {
	if !m.lines || now.Sub(m.printed) < lineInterval {
		return
	}
	m.printed = now
	took := now.Sub(m.begun)
	name, rate := cli.Printable(m.name), cli.MiBPerSecond(m.done, took)
	switch still := now.Sub(m.moved).Truncate(time.Second); {
	case still >= stalledAfter && m.size > 0:
		m.r.notef("%s: %s of %s (%d %%), stalled for %v", name, cli.SizeText(m.done), cli.SizeText(m.size), percent(m.done, m.size), still)
	case still >= stalledAfter:
		m.r.notef("%s: %s, stalled for %v", name, cli.SizeText(m.done), still)
	case m.size <= 0:
		m.r.notef("%s: %s, %.1f MiB/s", name, cli.SizeText(m.done), rate)
	default:
		left := time.Duration(float64(took) * float64(m.size-m.done) / float64(m.done)).Round(time.Second)
		m.r.notef("%s: %s of %s (%d %%), %.1f MiB/s, %v left", name, cli.SizeText(m.done), cli.SizeText(m.size), percent(m.done, m.size), rate, left)
	}
}

// percent returns the share of size that is done.
func percent(done, size int64) int { return int(float64(done) / float64(size) * 100) }

// progressEvent is a line of --json about a transfer under way, each second.
type progressEvent struct {
	Event          string  `json:"event"` // "progress"
	Name           string  `json:"name"`
	Peer           string  `json:"peer"`
	File           string  `json:"file,omitempty"` // of a tree, the file that is read
	Bytes          int64   `json:"bytes"`          // that the receiver has stored
	Size           int64   `json:"size"`           // of the whole file; -1 if it is not known
	Seconds        float64 `json:"seconds"`        // since the transfer began
	MiBPerSecond   float64 `json:"mib_per_second"` // of the last seconds
	SecondsLeft    float64 `json:"seconds_left"`   // at that rate; -1 if it is not known
	StalledSeconds float64 `json:"stalled_seconds"`
}

// look reports the transfer as it is now.
func (m *meter) look(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lineLocked(now)
	since := now.Sub(m.looked).Seconds()
	if !m.r.json || since <= 0 {
		return
	}
	newest := float64(m.done-m.doneThen) / since
	if m.rate += (newest - m.rate) * newestShare; m.looked.Equal(m.begun) {
		m.rate = newest
	}
	m.looked, m.doneThen = now, m.done
	e := progressEvent{Event: "progress", Name: m.name, Peer: m.peer, Bytes: m.done, Size: m.size, Seconds: cli.Round2(now.Sub(m.begun).Seconds()),
		MiBPerSecond: cli.Round2(m.rate / cli.MiB), SecondsLeft: -1}
	if still := now.Sub(m.moved); still >= stalledAfter {
		e.StalledSeconds = cli.Round2(still.Seconds())
	} else if m.size >= 0 && m.rate > 0 {
		e.SecondsLeft = cli.Round2(float64(m.size-m.done) / m.rate)
	}
	if p, ok := m.r.outlook.file(); ok {
		e.File = p.Path
	}
	_ = m.r.event(e) // the line about the result says it, which uses the same stream
}

// addMeter has the reporter look at a transfer.
func (r *reporter) addMeter(m *meter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meters[m] = struct{}{}
	if r.endLooks == nil && r.interval > 0 {
		r.endLooks = r.startLooks()
	}
}

// removeMeter ends the looks at a transfer. With the last one it ends the goroutine that looks, and waits for it.
func (r *reporter) removeMeter(m *meter) {
	r.mu.Lock()
	delete(r.meters, m)
	var end func()
	if len(r.meters) == 0 {
		end, r.endLooks = r.endLooks, nil
	}
	r.mu.Unlock()
	if end != nil {
		end()
	}
}

// startLooks starts the goroutine that looks at the transfers, and returns the function that ends it.
func (r *reporter) startLooks() (end func()) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(r.interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.look()
			case <-stop:
				return
			}
		}
	})
	return func() {
		close(stop)
		wg.Wait()
	}
}

// look looks at all transfers under way.
func (r *reporter) look() {
	now := r.now()
	r.mu.Lock()
	list := make([]*meter, 0, len(r.meters))
	for m := range r.meters {
		list = append(list, m)
	}
	r.mu.Unlock()
	for _, m := range list { // without the lock, which the lines need
		m.look(now)
	}
}
