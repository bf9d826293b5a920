package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"cinnabar/bench/internal/record"
)

// machine describes where and when the figures come from.
func (s *setting) machine(ctx context.Context) record.Machine {
	m := record.Machine{
		Format: record.Format, Date: time.Now().UTC().Format(time.RFC3339), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH,
		Processors: runtime.NumCPU(), Commit: "unknown", Rounds: s.rounds, Seconds: s.duration.Seconds(),
	}
	if commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(commit))
	}
	m.Kernel, m.Processor, m.Load = systemDetails()
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
	printf("# %s, %s %s, %d processors, %s, %d rounds of %v\n", m.Date, m.Go, m.System, m.Processors, m.Commit, m.Rounds, s.duration)
	printf("# %s, kernel %s, load average %s\n", unknownIfEmpty(m.Processor), unknownIfEmpty(m.Kernel), unknownIfEmpty(m.Load))
	if err != nil {
		printf("# price of a wake-up: not measured: %v\n", err)
	}
	for _, w := range m.Wake {
		printf("# waking a parked thread on a processor that is idle for %g us: p50 %.1f us, p90 %.1f us\n", w.Idle, w.P50, w.P90)
	}
	return nil
}

func unknownIfEmpty(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
