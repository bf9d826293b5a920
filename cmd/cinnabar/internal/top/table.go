package top

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cinnabar/cmd/cinnabar/internal/inspect"
	"cinnabar/stats"
)

// cell is a value of a table. Texts are safe for a terminal.
type cell struct {
	text   string
	number float64 // to sort by, if isNumber
	isNum  bool
}

func text(s string) cell     { return cell{text: inspect.Said(s)} }
func count(n int) cell       { return cell{text: inspect.Count(n), number: float64(n), isNum: true} }
func bytesCell(n int64) cell { return cell{text: inspect.Bytes(n), number: float64(n), isNum: true} }
func ageCell(d time.Duration) cell {
	return cell{text: inspect.Age(d), number: float64(d), isNum: true}
}

// row is a line of a table.
type row struct {
	cells []cell
	to    filter // the requests that the row stands for; zero: none, so Enter shows the row alone
}

// table is the content of a view.
type table struct {
	columns []string
	numeric []bool
	rows    []row
	more    int // rows that the process has left out
}

// filter selects requests and calls by peer or by RPC. The zero filter selects all.
type filter struct{ peer, rpc string }

func (f filter) keeps(peer, rpc string) bool {
	return (f.peer == "" || f.peer == peer) && (f.rpc == "" || f.rpc == rpc)
}

// view is one of the tables.
type view int

const (
	viewRPCs view = iota
	viewRequests
	viewCalls
	viewPeers
	viewMemory
	viewPools
	numViews
)

var viewNames = [numViews]string{"RPCs", "Requests", "Calls", "Peers", "Memory", "Pools"}

// sortedBy is the column by which a view is sorted at first, the largest value first.
var sortedBy = [numViews]int{viewRPCs: 1, viewRequests: 2, viewCalls: 2, viewPeers: 4, viewMemory: 1, viewPools: 1}

// tableOf returns the table of a view.
func tableOf(v view, s *stats.State, f filter) *table {
	switch v {
	case viewRPCs:
		return rpcTable(s)
	case viewRequests:
		return requestTable(s, f)
	case viewCalls:
		return callTable(s, f)
	case viewPeers:
		return peerTable(s)
	case viewMemory:
		return memoryTable(s)
	case viewPools, numViews:
	}
	return poolTable(s)
}

// rpcTable counts the requests of each RPC by their states.
func rpcTable(s *stats.State) *table {
	t := &table{columns: []string{"RPC", "RUNNING", "WAITING", "QUEUED", "HELD", "OLDEST"}, numeric: []bool{false, true, true, true, true, true}, more: s.More.Requests}
	type counts struct {
		running, waiting, queued, held int
		oldest                         time.Duration
	}
	byRPC := map[string]*counts{}
	for _, r := range s.Requests {
		c := byRPC[r.RPC]
		if c == nil {
			c = &counts{}
			byRPC[r.RPC] = c
		}
		switch r.State {
		case "running":
			c.running++
		case "waiting":
			c.waiting++
		case "queued":
			c.queued++
		default:
			c.held++
		}
		c.oldest = max(c.oldest, r.Age)
	}
	for name, c := range byRPC {
		t.rows = append(t.rows, row{[]cell{text(name), count(c.running), count(c.waiting), count(c.queued), count(c.held), ageCell(c.oldest)}, filter{rpc: name}})
	}
	return t
}

func requestTable(s *stats.State, f filter) *table {
	t := &table{columns: []string{"RPC", "STATE", "AGE", "PEER", "POOL"}, numeric: []bool{false, false, true, false, false}, more: s.More.Requests}
	for _, r := range s.Requests {
		if f.keeps(r.Peer, r.RPC) {
			t.rows = append(t.rows, row{cells: []cell{text(r.RPC), text(r.State), ageCell(r.Age), text(r.Peer), text(r.Pool)}})
		}
	}
	return t
}

// callTable has the calls and the transfers that the process waits for.
func callTable(s *stats.State, f filter) *table {
	t := &table{columns: []string{"RPC", "KIND", "AGE", "PEER", "BYTES", "WITHIN"}, numeric: []bool{false, false, true, false, true, false}, more: s.More.Calls + s.More.Transfers}
	for _, list := range [][]stats.Operation{s.Calls, s.Transfers} {
		for _, c := range list {
			if f.keeps(c.Peer, c.RPC) {
				t.rows = append(t.rows, row{cells: []cell{text(c.RPC), text(c.Op), ageCell(c.Age), text(c.Peer), bytesCell(c.Bytes), text(c.Within)}})
			}
		}
	}
	return t
}

// peerTable has the connections, with the numbers of requests and calls of their peers.
func peerTable(s *stats.State) *table {
	t := &table{columns: []string{"PEER", "STATE", "REQUESTS", "CALLS", "RECEIVED", "SENT", "REPORT"}, numeric: []bool{false, false, true, true, true, true, false}, more: s.More.Connections}
	requests, calls := map[string]int{}, map[string]int{}
	for _, r := range s.Requests {
		requests[r.Peer]++
	}
	for _, list := range [][]stats.Operation{s.Calls, s.Transfers} {
		for _, c := range list {
			calls[c.Peer]++
		}
	}
	for _, c := range s.Connections {
		t.rows = append(t.rows, row{[]cell{text(c.Peer), text(c.State), count(requests[c.Peer]), count(calls[c.Peer]), bytesCell(c.Received), bytesCell(c.Sent), text(c.Report)}, filter{peer: c.Peer}})
	}
	return t
}

func memoryTable(s *stats.State) *table {
	t := &table{columns: []string{"COUNT", "BYTES", "KIND", "MADE IN"}, numeric: []bool{true, true, false, false}, more: s.More.Memory}
	for _, m := range s.Memory {
		t.rows = append(t.rows, row{cells: []cell{count(m.Count), bytesCell(m.Bytes), text(m.Kind), text(m.Place)}})
	}
	return t
}

func poolTable(s *stats.State) *table {
	t := &table{columns: []string{"POOL", "RUNNING", "WAITING", "QUEUED", "SERVED", "REFUSED"}, numeric: []bool{false, true, true, true, true, true}, more: s.More.Pools}
	for _, p := range s.Pools {
		name := text(p.Name)
		if p.Name == "" {
			name.text = "(none)"
		}
		t.rows = append(t.rows, row{cells: []cell{name, count(p.Running), count(p.Waiting), count(p.Queued), count(int(min(p.Served, 1<<53))), count(int(min(p.Refused, 1<<53)))}})
	}
	return t
}

// sort sorts the rows by a column: numbers from the largest, texts from the first. Rows that are equal there are in the order of their
// other cells, so that they do not change places without reason.
func (t *table) sort(column int, reverse bool) {
	sign := 1
	if reverse {
		sign = -1
	}
	slices.SortStableFunc(t.rows, func(a, b row) int {
		if c := compare(a.cells[column], b.cells[column]); c != 0 {
			return sign * c
		}
		for i := range a.cells {
			if c := compare(a.cells[i], b.cells[i]); c != 0 {
				return c
			}
		}
		return 0
	})
}

func compare(a, b cell) int {
	if a.isNum && b.isNum {
		return cmp.Compare(b.number, a.number)
	}
	return strings.Compare(a.text, b.text)
}

// Widths of columns, in characters.
const (
	leastColumn = 5
	gap         = 2
)

// widths returns the widths of the columns that fit a line: the widest ones are cut first, and then the last ones are left out.
func (t *table) widths(width int, marks []string) []int {
	w := make([]int, len(t.columns))
	for i := range t.columns {
		w[i] = utf8.RuneCountInString(marks[i])
		for _, r := range t.rows {
			w[i] = max(w[i], utf8.RuneCountInString(r.cells[i].text))
		}
	}
	for {
		sum, widest := gap*(len(w)-1), 0
		for i, n := range w {
			sum += n
			if n > w[widest] {
				widest = i
			}
		}
		switch {
		case sum <= width || len(w) == 1 && w[0] <= max(width, 1):
			return w
		case w[widest] > max(leastColumn, widestNumber(t, w)):
			w[widest] -= max(1, min(sum-width, (w[widest]-leastColumn)/2))
		case len(w) > 1:
			w = w[:len(w)-1]
		default:
			w[0] = max(width, 1)
			return w
		}
	}
}

// widestNumber returns the width of the widest column of numbers, because numbers are not cut while a text is wider.
func widestNumber(t *table, w []int) (n int) {
	for i := range w {
		if t.numeric[i] {
			n = max(n, w[i])
		}
	}
	return min(n, 12)
}

// line joins cells to a line with columns of these widths.
func (t *table) line(cells []string, widths []int) string {
	var b strings.Builder
	for i, w := range widths {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		c := cut(cells[i], w)
		if name := t.columns[i]; name == "PEER" || name == "MADE IN" {
			c = cutFront(cells[i], w)
		}
		pad := strings.Repeat(" ", max(0, w-utf8.RuneCountInString(c)))
		if t.numeric[i] {
			b.WriteString(pad + c)
		} else {
			b.WriteString(c + pad)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// cut shortens a text to n characters. The last one is then an ellipsis.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 1 {
		return ""
	}
	return string([]rune(s)[:n-1]) + "…"
}

// cutFront shortens a text to its last n characters, because addresses and places differ at their ends.
func cutFront(s string, n int) string {
	over := utf8.RuneCountInString(s) - n
	if over <= 0 || n < 1 {
		return cut(s, n)
	}
	return "…" + string([]rune(s)[over+1:])
}
