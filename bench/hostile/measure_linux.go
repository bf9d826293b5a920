package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// attackers is how many processes attack, or spin.
const attackers = 10

// rowLimit is the time that a process of a measurement has beyond the times of its measurements before it ends itself.
const rowLimit = 40 * time.Second

// measurement is the result of one attack.
type measurement struct {
	attack      *attack
	base, now   report
	rate        float64 // of all attackers, in operations a second, the mean of the rounds
	peak, after usage
	end         ending
	attackError string // the first one of an attacker
	crash       error  // why the server ended
}

// measure runs one attack against a server of its own.
func (s *setting) measure(ctx context.Context, a *attack, cpus [2]int) (m *measurement, err error) {
	limit := time.Duration(s.rounds)*(2*s.duration+2*s.callLimit+settleLimit) + rowLimit
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m = &measurement{attack: a}
	o := order{Role: roleServer, Service: a.service, Attack: a.name, CallLimit: s.callLimit, Limit: limit}
	server, err := s.start(ctx, &o, cpus[0])
	if err != nil {
		return nil, err
	}
	if err := server.read(&o.Server); err != nil {
		return nil, err
	}
	o.Role = roleInnocent
	innocent, err := s.start(ctx, &o, cpus[0])
	if err == nil {
		err = innocent.read(&o.Innocent)
	}
	if err != nil {
		return nil, errors.Join(err, server.end())
	}
	for range s.rounds {
		if err := s.compare(ctx, m, &o, server, innocent, cpus[1]); err != nil {
			return nil, errors.Join(err, innocent.end(), server.end())
		}
	}
	m.rate /= float64(s.rounds)
	if err := innocent.end(); err != nil {
		return nil, err
	}
	_ = server.in.Close() // of a server that has ended it is closed already
	if m.crash = server.read(&m.end); m.crash == nil {
		m.crash = server.end()
	}
	return m, nil
}

// compare is one round: it measures the innocent client beside spinning processes and beside attackers, and adds the results to m.
func (s *setting) compare(ctx context.Context, m *measurement, o *order, server, innocent *process, cpu int) error {
	o.Role = roleSpinner
	base, _, err := s.beside(ctx, o, innocent, s.duration, cpu)
	if err != nil {
		return err
	}
	m.base.add(base)
	before := server.usage()
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		u := server.watch(watching)
		m.peak = usage{max(m.peak.rss, u.rss), max(m.peak.fds, u.fds)}
	})
	o.Role = roleAttacker
	now, efforts, err := s.beside(ctx, o, innocent, s.duration, cpu)
	stop()
	wg.Wait()
	if err == nil {
		m.now.add(now)
	}
	for _, e := range efforts {
		m.rate += float64(e.Ops) / max(e.Elapsed.Seconds(), 1e-3)
		if m.attackError == "" {
			m.attackError = e.Error
		}
	}
	m.after = server.settle(ctx, before)
	return err
}

// beside measures the innocent client for d beside processes of the role in o.
func (s *setting) beside(ctx context.Context, o *order, innocent *process, d time.Duration, cpu int) (r report, efforts []effort, err error) {
	o.For = d
	var list []*process
	for i := range attackers {
		o.Index, o.Local = i, netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i)})
		if a := attackOf(o.Service, o.Attack); a.sameHost {
			o.Local = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		p, err := s.start(ctx, o, cpu)
		if err != nil {
			return r, nil, err
		}
		list = append(list, p)
	}
	stopping, resume := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if o.Role == roleAttacker && attackOf(o.Service, o.Attack).stopped {
		wg.Go(func() { stopAndGo(stopping, list) })
	}
	if err = innocent.say(d); err == nil {
		err = innocent.read(&r)
	}
	resume()
	wg.Wait()
	for _, p := range list {
		var e effort
		if err := p.read(&e); err != nil {
			e.Error = err.Error() // an attacker that fails is a lazy one, which the table shows
		} else if err := p.end(); err != nil {
			e.Error = err.Error()
		}
		efforts = append(efforts, e)
	}
	return r, efforts, err
}

// stopAndGo stops all processes and lets them go on, in turn, until ctx ends.
func stopAndGo(ctx context.Context, list []*process) {
	const each = 300 * time.Millisecond
	for ctx.Err() == nil {
		pause(ctx, each)
		signalAll(list, unix.SIGSTOP)
		pause(ctx, 2*each)
		signalAll(list, unix.SIGCONT)
	}
}

func signalAll(list []*process, sig unix.Signal) {
	for _, p := range list {
		_ = p.cmd.Process.Signal(sig) // one that has ended needs none
	}
}

// rows returns the lines of the table.
func (m *measurement) rows() []row {
	var rows []row
	if m.now.Steady != nil {
		rows = append(rows, row{m, "steady", *m.base.Steady, *m.now.Steady})
	}
	if m.now.Newcomer != nil {
		rows = append(rows, row{m, "newcomer", *m.base.Newcomer, *m.now.Newcomer})
	}
	return rows
}

// maxClose is how long the closing of exposed memory may take beside slow readers: 5 s, and a second of a busy processor.
const maxClose = 6 * time.Second

// missed returns the bars that the measurement has missed.
func (m *measurement) missed() (list []string) {
	name := m.attack.service + ", " + m.attack.name
	if m.crash != nil {
		list = append(list, fmt.Sprintf("%s: the server: %v", name, m.crash))
	}
	for _, r := range m.rows() {
		if n := r.base.Failures; n > 0 {
			list = append(list, fmt.Sprintf("%s: %d of %d %s calls failed beside spinning processes: %s", name, n, r.base.Calls, r.kind, r.base.Error))
		}
		if n := r.now.Failures; n > 0 {
			list = append(list, fmt.Sprintf("%s: %d of %d %s calls failed: %s", name, n, r.now.Calls, r.kind, r.now.Error))
		}
		if x := r.ratio(); x >= maxRatio {
			list = append(list, fmt.Sprintf("%s: %s calls: 99th percentile %v, %.1f times %v", name, r.kind, brief(r.now.percentile(99)), x, brief(r.base.percentile(99))))
		}
	}
	if d := m.end.LongestClose; d > maxClose {
		list = append(list, fmt.Sprintf("%s: closing exposed memory took %v", name, brief(d)))
	}
	if m.rate == 0 {
		list = append(list, fmt.Sprintf("%s: the attackers did nothing: %s", name, m.attackError))
	}
	return list
}
