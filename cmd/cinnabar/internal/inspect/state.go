package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
	"cinnabar/margo"
	"cinnabar/stats"
)

// tooOften is the error of a query that a process has refused because its peers ask too often.
func tooOften(ep *cinnabar.Endpoint) error {
	return fmt.Errorf("%w: %v is asked too often, or has no memory for the request; ask again in a second", codes.Again, ep)
}

// answeredState is the output of query --state --json.
type answeredState struct {
	*stats.State
	Transport string `json:"transport"`
}

// AskState asks the process at ep for its state. The errors name the remedy.
func AskState(ctx context.Context, ep *cinnabar.Endpoint, rows int) (*stats.State, error) {
	s, err := margo.QueryState(ctx, ep, rows)
	switch {
	case errors.Is(err, codes.Again):
		return nil, tooOften(ep)
	case errors.Is(err, codes.NoEntry):
		return nil, fmt.Errorf("%w: %v does not allow queries (Config.AllowQuery, perf serve --allow-query), has a version without QueryState, or is no Go program", codes.NoEntry, ep)
	}
	return s, err
}

// runState prints the state of the process at ep.
func (o *queryOptions) runState(ctx context.Context, e *cinnabar.Engine, ep *cinnabar.Endpoint, w io.Writer) error {
	s, err := AskState(ctx, ep, o.rows)
	switch {
	case err != nil:
		return err
	case o.json:
		return cli.WriteJSON(w, answeredState{s, cli.Carried(e, ep.String())})
	}
	if _, err := fmt.Fprintf(w, "asked over %s\n", cli.Carried(e, ep.String())); err != nil {
		return err
	}
	return WriteState(w, s)
}

// WriteState prints tables of the parts of a state. All texts of s may be hostile.
func WriteState(w io.Writer, s *stats.State) error {
	i := &cli.Printer{W: w}
	i.Printf("%s, for %s\n\n", said(s.Addr), Age(s.Age))
	t := &tables{Printer: i}
	t.begin("REQUESTS OF PEERS", "STATE\tRPC\tAGE\tPEER\tPOOL")
	for _, r := range s.Requests {
		t.row("%s\t%s\t%s\t%s\t%s", said(r.State), said(r.RPC), Age(r.Age), said(r.Peer), said(r.Pool))
	}
	t.end(s.More.Requests)
	t.begin("CALLS OF THIS PROCESS", "RPC\tAGE\tPEER\tWITHIN")
	for _, c := range s.Calls {
		t.row("%s\t%s\t%s\t%s", said(c.RPC), Age(c.Age), said(c.Peer), said(c.Within))
	}
	t.end(s.More.Calls)
	t.begin("TRANSFERS OF THIS PROCESS", "OPERATION\tBYTES\tAGE\tPEER")
	for _, c := range s.Transfers {
		t.row("%s\t%s\t%s\t%s", said(c.Op), Bytes(c.Bytes), Age(c.Age), said(c.Peer))
	}
	t.end(s.More.Transfers)
	t.begin(fmt.Sprintf("EXPOSED MEMORY: %d, %s", s.MemoryCount, Bytes(s.MemoryBytes)), "COUNT\tBYTES\tKIND\tMADE IN")
	for _, m := range s.Memory {
		t.row("%d\t%s\t%s\t%s", m.Count, Bytes(m.Bytes), said(m.Kind), said(m.Place))
	}
	t.end(s.More.Memory)
	t.begin("CONNECTIONS", "STATE\tPEER\tMADE BY\tRECEIVED\tSENT\tREPORT")
	for _, c := range s.Connections {
		by := "this process"
		if c.Inbound {
			by = "the peer"
		}
		t.row("%s\t%s\t%s\t%s\t%s\t%s", said(c.State), said(c.Peer), by, Bytes(c.Received), Bytes(c.Sent), said(c.Report))
	}
	t.end(s.More.Connections)
	t.begin("POOLS", "POOL\tRUNNING\tWAITING\tQUEUED\tSERVED\tREFUSED")
	for _, p := range s.Pools {
		name := "(none)"
		if p.Name != "" {
			name = said(p.Name)
		}
		t.row("%s\t%d\t%d\t%d\t%d\t%d", name, p.Running, p.Waiting, p.Queued, p.Served, p.Refused)
	}
	t.end(s.More.Pools)
	return i.Err
}

// tables prints one table after the other.
type tables struct {
	*cli.Printer
	columns string
	rows    []string
}

// begin begins a table with a title and the names of its columns.
func (t *tables) begin(title, columns string) {
	t.Printf("%s\n", title)
	t.columns, t.rows = columns, nil
}

func (t *tables) row(format string, args ...any) {
	t.rows = append(t.rows, fmt.Sprintf(format, args...))
}

// end prints the table, which lacks more rows.
func (t *tables) end(more int) {
	if len(t.rows) == 0 && more <= 0 {
		t.Printf("  none\n\n")
		return
	}
	w := cli.NewTable(t.W)
	i := &cli.Printer{W: w}
	i.Printf("  %s\n", t.columns)
	for _, r := range t.rows {
		i.Printf("  %s\n", r)
	}
	if t.Err == nil {
		t.Err = errors.Join(i.Err, w.Flush())
	}
	if more > 0 {
		t.Printf("  … and %d more\n", more)
	}
	t.Printf("\n")
}

// Age returns the text of an age, which is exact to a tenth of a second.
func Age(d time.Duration) string {
	switch {
	case d < 0:
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// Count returns the text of a number, with k, M or G for thousands if it is long.
func Count(n int) string {
	if n < 10_000 {
		return strconv.Itoa(n)
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"k", "M", "G", "T", "P"} {
		if f /= 1000; f < 1000 {
			break
		}
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + unit
}

// Bytes returns the text of a number of bytes; a dash if it is negative, because it is not known then.
func Bytes(n int64) string {
	switch {
	case n < 0:
		return "-"
	case n < 1<<10:
		return strconv.FormatInt(n, 10) + " B"
	}
	return humanize.IBytes(uint64(n))
}

// Said returns the text that another process sent, safe for a terminal, or a dash for an empty one.
func Said(s string) string { return said(s) }
