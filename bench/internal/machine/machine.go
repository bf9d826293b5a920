// Package machine describes the place and the time of a measurement.
package machine

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"cinnabar/bench/internal/record"
)

// Describe returns the machine at this moment, with the commit of the repository in the working directory.
func Describe(ctx context.Context) record.Machine {
	m := record.Machine{
		Format: record.Format, Date: time.Now().UTC().Format(time.RFC3339), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH,
		Processors: runtime.NumCPU(), Commit: "unknown",
	}
	if commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(commit))
	}
	m.Kernel, m.Processor, m.Load = systemDetails()
	return m
}

// Print writes two lines about the machine, each with a # in front. text follows the commit. Print ignores errors, because the first table after it reports an
// output that fails.
func Print(w io.Writer, m *record.Machine, text string) {
	_, _ = fmt.Fprintf(w, "# %s, %s %s, %d processors, %s, %s\n", m.Date, m.Go, m.System, m.Processors, m.Commit, text)
	_, _ = fmt.Fprintf(w, "# %s, kernel %s, load average %s\n", unknownIfEmpty(m.Processor), unknownIfEmpty(m.Kernel), unknownIfEmpty(m.Load))
}

func unknownIfEmpty(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
