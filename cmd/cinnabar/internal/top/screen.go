package top

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/inspect"
	"cinnabar/stats"
)

// key is a key of the keyboard: a character, or one of the constants.
type key rune

// Keys that are no characters.
const (
	keyUp key = -1 - iota
	keyDown
	keyLeft
	keyRight
	keyPageUp
	keyPageDown
	keyEscape
	keyEnter
	keyTab
	keyInterrupt
	keyRedraw
	keyOther
)

// maxKey is the largest number of bytes that splitKeys takes for the start of one key.
const maxKey = 16

// splitKeys returns the keys that are complete at the start of b, and the rest: the start of a key whose other bytes have not come.
func splitKeys(b []byte) (whole, rest []byte) {
	for at := 0; at < len(b); {
		left := b[at:]
		var n int
		switch {
		case left[0] != 0x1b:
			if !utf8.FullRune(left) {
				return b[:at], left
			}
			_, n = utf8.DecodeRune(left)
		case len(left) < maxKey && !wholeEscape(left):
			return b[:at], left
		default:
			_, n = parseEscape(left)
		}
		at += n
	}
	return b, nil
}

// wholeEscape reports whether b, which begins with an escape character, has all bytes of its first key.
func wholeEscape(b []byte) bool {
	if len(b) < 2 || b[1] != '[' && b[1] != 'O' {
		return len(b) > 1
	}
	for _, c := range b[2:] {
		if c >= 0x40 && c <= 0x7e {
			return true
		}
	}
	return false
}

// parseKeys reads the keys from the bytes that a terminal sends.
func parseKeys(b []byte) (keys []key) {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		k := key(r)
		switch r {
		case 3, 4: // ^C and ^D
			k = keyInterrupt
		case '\r', '\n':
			k = keyEnter
		case '\t':
			k = keyTab
		case '\f': // ^L
			k = keyRedraw
		case 0x1b:
			k, n = parseEscape(b)
		case utf8.RuneError:
			k = keyOther
		}
		keys, b = append(keys, k), b[n:]
	}
	return keys
}

// parseEscape reads a key that begins with an escape character, and returns the number of its bytes.
func parseEscape(b []byte) (key, int) {
	if len(b) < 3 || b[1] != '[' && b[1] != 'O' {
		return keyEscape, 1
	}
	end := 2
	for end < len(b)-1 && (b[end] < 0x40 || b[end] > 0x7e) {
		end++
	}
	switch b[end] {
	case 'A':
		return keyUp, end + 1
	case 'B':
		return keyDown, end + 1
	case 'C':
		return keyRight, end + 1
	case 'D':
		return keyLeft, end + 1
	case '~':
		switch b[2] {
		case '5':
			return keyPageUp, end + 1
		case '6':
			return keyPageDown, end + 1
		}
	}
	return keyOther, end + 1
}

// screen is the model of the display: the last answer of the process, and the choices of the user. It has no terminal and no clock, so that tests
// need neither.
type screen struct {
	address string
	every   time.Duration
	state   *stats.State
	rates   string // of the last interval
	trouble string // the error of the last question; empty: the process has answered

	view    view
	sortBy  [numViews]int
	reverse [numViews]bool
	only    filter
	at      int // the selected row
	page    int // rows that the last drawing had room for
	detail  bool
	help    bool
	paused  bool
	last    time.Time // of state
}

func newScreen(address string, every time.Duration) *screen {
	return &screen{address: address, every: every, sortBy: sortedBy, page: 1}
}

// answered stores an answer that came at now, and computes the rates since the one before.
func (s *screen) answered(next *stats.State, now time.Time) {
	if before := s.state; before != nil && now.After(s.last) {
		seconds := now.Sub(s.last).Seconds()
		rate := func(a, b uint64) float64 {
			if b < a { // another process has the address now
				return 0
			}
			return float64(b-a) / seconds
		}
		s.rates = fmt.Sprintf("requests %s/s  calls %s/s  read %s/s  written %s/s",
			inspect.Count(int(rate(before.Net.RequestsRecvd, next.Net.RequestsRecvd))), inspect.Count(int(rate(before.Net.RequestsSent, next.Net.RequestsSent))),
			inspect.Bytes(int64(rate(before.Net.BytesRead, next.Net.BytesRead))), inspect.Bytes(int64(rate(before.Net.BytesWritten, next.Net.BytesWritten))))
	}
	s.state, s.last, s.trouble = next, now, ""
}

// failed stores the error of a question without an answer.
func (s *screen) failed(err error) { s.trouble = cli.Printable(cli.OneLine(err)) }

// press performs the action of a key, and reports whether the key ends top.
func (s *screen) press(k key) (quit bool) {
	if k == keyInterrupt || k == 'q' || k == 'Q' {
		return true
	}
	if s.help { // any key
		s.help = false
		return false
	}
	rows := len(s.table().rows)
	columns := len(s.table().columns)
	switch k {
	case '?', 'h':
		s.help = true
	case 'p', ' ':
		s.paused = !s.paused
	case keyTab, keyRight:
		s.show((s.view+1)%numViews, filter{})
	case keyLeft:
		s.show((s.view+numViews-1)%numViews, filter{})
	case 's':
		s.sortBy[s.view] = (s.sortBy[s.view] + 1) % columns
	case 'S':
		s.sortBy[s.view] = (s.sortBy[s.view] + columns - 1) % columns
	case 'r':
		s.reverse[s.view] = !s.reverse[s.view]
	case keyUp, 'k':
		s.at--
	case keyDown, 'j':
		s.at++
	case keyPageUp:
		s.at -= s.page
	case keyPageDown:
		s.at += s.page
	case keyEnter:
		s.enter()
	case keyEscape, 0x7f:
		if s.detail {
			s.detail = false
		} else {
			s.only = filter{}
		}
	default:
		if v := view(k - '1'); v >= 0 && v < numViews {
			s.show(v, filter{})
		}
	}
	s.at = max(0, min(s.at, rows-1))
	return false
}

func (s *screen) show(v view, f filter) { s.view, s.only, s.at, s.detail = v, f, 0, false }

// enter goes from the selected row to the requests that it stands for, or shows the row alone.
func (s *screen) enter() {
	t := s.table()
	switch {
	case s.at >= len(t.rows) || s.detail:
	case t.rows[s.at].to != filter{}:
		s.show(viewRequests, t.rows[s.at].to)
	default:
		s.detail = true
	}
}

// table returns the table of the view, sorted.
func (s *screen) table() *table {
	if s.state == nil {
		return &table{columns: []string{""}, numeric: []bool{false}}
	}
	t := tableOf(s.view, s.state, s.only)
	t.sort(s.sortBy[s.view], s.reverse[s.view])
	return t
}

// line is a line of the screen.
type line struct {
	text    string
	reverse bool // colours of text and background are exchanged
}

// Lines above and below the rows of a table.
const (
	above = 4
	below = 1
)

// draw returns the lines of the screen, at most height, of at most width characters.
func (s *screen) draw(width, height int) []line {
	width, height = max(width, 1), max(height, 1)
	lines := s.head(width)
	room := max(height-above-below, 0)
	s.page = max(room, 1)
	var body []line
	switch t := s.table(); {
	case s.help:
		body = help()
	case s.state == nil:
	case s.detail && s.at < len(t.rows):
		body = detail(t, s.at, width)
	default:
		body = s.rows(t, width, room)
		lines, body = append(lines, body[0]), body[1:]
	}
	lines = append(lines, body...)
	foot := line{text: "q quit  ? keys"}
	if width >= 60 {
		foot.text = "q quit  1-6 tab view  s r sort  ↑↓ enter esc  p pause  ? keys"
	}
	if s.trouble != "" {
		foot = line{"no answer: " + s.trouble, true}
	}
	for len(lines) < height-1 {
		lines = append(lines, line{})
	}
	lines = append(lines[:height-1], foot)
	for i := range lines {
		lines[i].text = cut(lines[i].text, width)
	}
	return lines
}

// head returns the lines above the table: the process, its rates, and the names of the views.
func (s *screen) head(width int) []line {
	title, rates := "cinnabar top  "+cli.Printable(s.address), s.rates
	if s.state != nil {
		title += "  for " + inspect.Age(s.state.Age)
		if rates == "" {
			rates = fmt.Sprintf("requests %s  calls %s", inspect.Count(int(min(s.state.Net.RequestsRecvd, 1<<53))), inspect.Count(int(min(s.state.Net.RequestsSent, 1<<53))))
		}
	}
	if s.paused {
		title = "paused  " + title
	}
	names := make([]string, numViews)
	for v, name := range viewNames {
		names[v] = fmt.Sprintf("%d %s", v+1, name)
		if width < 60 {
			names[v] = fmt.Sprintf("%d %.3s", v+1, name)
		}
		if view(v) == s.view {
			names[v] = "[" + names[v] + "]"
		}
	}
	tabs := strings.Join(names, " ")
	if s.only.peer != "" {
		tabs += "  of " + inspect.Said(s.only.peer)
	}
	if s.only.rpc != "" {
		tabs += "  of " + inspect.Said(s.only.rpc)
	}
	return []line{{title, false}, {rates, false}, {tabs, false}}
}

// rows returns the line of the columns' names, and as many rows as there is room for, the selected one among them.
func (s *screen) rows(t *table, width, room int) []line {
	marks := make([]string, len(t.columns))
	for i, name := range t.columns {
		marks[i] = name
		if i == s.sortBy[s.view] {
			if t.numeric[i] != s.reverse[s.view] {
				marks[i] += "▼"
			} else {
				marks[i] += "▲"
			}
		}
	}
	widths := t.widths(width, marks)
	lines := []line{{t.line(marks, widths), false}}
	s.at = max(0, min(s.at, len(t.rows)-1))
	missing := t.more > 0
	if missing {
		room--
	}
	first := max(0, s.at-max(room, 1)+1)
	for i := first; i < len(t.rows) && i < first+max(room, 0); i++ {
		cells := make([]string, len(t.columns))
		for c, v := range t.rows[i].cells {
			cells[c] = v.text
		}
		l := line{t.line(cells, widths), i == s.at}
		if l.reverse {
			l.text += strings.Repeat(" ", max(0, width-utf8.RuneCountInString(l.text)))
		}
		lines = append(lines, l)
	}
	if len(t.rows) == 0 {
		lines = append(lines, line{text: "none"})
	}
	if missing {
		lines = append(lines, line{text: fmt.Sprintf("… and %d more", t.more)})
	}
	return lines
}

// detail returns all of a row, each cell on lines of its own.
func detail(t *table, at, width int) (lines []line) {
	for i, c := range t.rows[at].cells {
		lines = append(lines, line{text: t.columns[i]})
		rest := []rune(c.text)
		for n := max(width-2, 1); len(rest) > 0; {
			part := rest[:min(n, len(rest))]
			lines, rest = append(lines, line{text: "  " + string(part)}), rest[len(part):]
		}
	}
	return append(lines, line{}, line{text: "esc goes back"})
}

func help() (lines []line) {
	for text := range strings.SplitSeq(`1 to 6, tab, ← →  choose a view
↑ ↓, k j, pages   choose a row
enter             requests of the row's RPC or peer,
                  or all of the row
esc               back
s S               sort by the next or the last column
r                 reverse the order
p, space          pause, go on
^L                draw all again
q, ^C             end
any key           leave this page`, "\n") {
		lines = append(lines, line{text: text})
	}
	return lines
}
