package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"cinnabar/bench/internal/record"
)

// Figures of a round.
func meanOf(r record.Round) float64  { return r.Usec }
func rateOf(r record.Round) float64  { return r.MiB }
func p50Of(r record.Round) float64   { return r.P50 }
func p99Of(r record.Round) float64   { return r.P99 }
func leastOf(r record.Round) float64 { return r.Least }
func mostOf(r record.Round) float64  { return r.Most }

// printTable writes a row for each path, with medians over the rounds and the main figure of every round. The ratio is that of the main figure to
// the first path that was there.
func printTable(w io.Writer, c *benchCase, title string, results []record.Result) error {
	if _, err := fmt.Fprintf(w, "\n# %s%s\n", c.name(), title); err != nil {
		return err
	}
	main, unit := meanOf, "usec"
	if c.bulk() {
		main, unit = rateOf, "MiB/s"
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"path", unit, "ratio", "p50 usec", "p99 usec"}
	if c.clients > 1 {
		head = append(head, "least calls/s", "most calls/s")
	}
	_, _ = fmt.Fprintf(table, "%s\t  rounds\n", strings.Join(head, "\t"))
	first := 0.0
	for _, r := range results {
		if len(r.Rounds) == 0 {
			_, _ = fmt.Fprintf(table, "%s\tnot there\t\n", r.Path)
			continue
		}
		median, ok := r.Median(main)
		if first == 0 {
			first = median
		}
		row := []string{r.Path, text(median, ok, "%.2f"), text(median/first, ok && first > 0, "%.3f"), medianText(&r, p50Of), medianText(&r, p99Of)}
		if c.clients > 1 {
			row = append(row, medianText(&r, leastOf), medianText(&r, mostOf))
		}
		var rounds []string
		for _, x := range r.Rounds {
			rounds = append(rounds, fmt.Sprintf("%.2f", main(x)))
		}
		_, _ = fmt.Fprintf(table, "%s\t  %s\n", strings.Join(row, "\t"), strings.Join(rounds, " "))
	}
	return table.Flush()
}

// medianText returns the median of a figure, or "-" if the program does not print it.
func medianText(r *record.Result, figure func(record.Round) float64) string {
	m, ok := r.Median(figure)
	return text(m, ok, "%.2f")
}

func text(x float64, known bool, format string) string {
	if !known {
		return "-"
	}
	return fmt.Sprintf(format, x)
}
