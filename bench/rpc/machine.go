package main

import (
	"context"
	"fmt"
	"time"

	"cinnabar/bench/internal/machine"
	"cinnabar/bench/internal/record"
)

// machine describes where and when the figures come from.
func (s *setting) machine(ctx context.Context) record.Machine {
	m := machine.Describe(ctx)
	m.Rounds, m.Seconds = s.rounds, s.duration.Seconds()
	m.Late, m.Toll = float64(s.late)/float64(time.Microsecond), float64(s.toll)/float64(time.Microsecond)
	return m
}

// describe measures the price of a wake-up, and prints the description.
func (s *setting) describe(m record.Machine) error {
	wake, err := wakePrice()
	m.Wake = wake
	if err := record.Write(s.lines, m); err != nil {
		return err
	}
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) } // an output that fails shows at the first table
	machine.Print(s.out, &m, fmt.Sprintf("%d rounds of %v", m.Rounds, s.duration))
	if err != nil {
		printf("# price of a wake-up: not measured: %v\n", err)
	}
	for _, w := range m.Wake {
		printf("# waking a parked thread on a processor that is idle for %g us: p50 %.1f us, p90 %.1f us\n", w.Idle, w.P50, w.P90)
	}
	if s.late > 0 || s.toll > 0 {
		printf("# in cinnabar's processes each wake-up takes %v longer on purpose, and each signal %v\n", s.late, s.toll)
	}
	return nil
}

// use is the processor time of the machine and of this program up to a moment.
type use struct {
	at                  time.Time
	total, stolen, ours time.Duration // ours: of this process and of its children that have ended
	known               bool
}

// since returns the number of processors that others used, and that the host withheld, since an earlier moment; 0 where the system does not say.
func (u use) since(before use) (others, stolen float64) {
	if took := u.at.Sub(before.at).Seconds(); u.known && before.known && took > 0 {
		others = max(0, ((u.total-before.total)-(u.ours-before.ours)).Seconds()/took)
		stolen = max(0, (u.stolen-before.stolen).Seconds()/took)
	}
	return others, stolen
}
