package top

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/stats"
)

func TestMain(m *testing.M) {
	clitest.Main(m, func(s cli.Streams) *cobra.Command { return cli.NewRoot(s, New(s)) })
}

// hostile is a text that a terminal should not obey.
const hostile = "a\x1b[2J\u202e\n\tb"

// sample returns a state with rows in each table.
func sample() *stats.State {
	s := &stats.State{}
	s.Addr, s.Age = "ofi+tcp://10.0.0.1:7000", 75*time.Second
	s.Requests = []stats.Request{
		{State: "running", RPC: "get@42", Peer: "ofi+tcp://10.0.0.2:4000", Pool: "disk", Age: 12 * time.Second},
		{State: "queued", RPC: "get@42", Peer: "ofi+tcp://10.0.0.3:4001", Pool: "disk", Age: 2 * time.Second},
		{State: "waiting", RPC: "relay", Peer: "ofi+tcp://10.0.0.2:4000", Age: 340 * time.Millisecond},
		{State: "held", RPC: hostile, Peer: "ofi+tcp://10.0.0.3:4001", Age: time.Hour},
	}
	s.Calls = []stats.Operation{{Op: "call", RPC: "put", Peer: "ofi+tcp://10.0.0.2:4000", Age: 3 * time.Second, Within: "relay"}}
	s.Transfers = []stats.Operation{{Op: "pull", Peer: "ofi+tcp://10.0.0.3:4001", Bytes: 1 << 20, Age: time.Second}}
	s.Connections = []stats.Connection{
		{Peer: "ofi+tcp://10.0.0.2:4000", State: "active", Inbound: true, Received: 5000, Sent: 700},
		{Peer: "ofi+tcp://10.0.0.3:4001", State: "blocked", Received: 100, Sent: -1, Report: "the peer takes no bytes from its connection"},
	}
	s.Memory = []stats.Memory{{Kind: "read-write bulk of 64 bytes in 1 segments", Count: 300, Bytes: 300 * 64, Place: "main.buffers at app/main.go:17"}}
	s.MemoryCount, s.MemoryBytes, s.More.Memory, s.More.Requests = 307, 20_000, 7, 9
	s.Pools = []stats.NamedPool{{Pool: stats.Pool{Running: 1, Served: 12345}}, {Name: "disk", Pool: stats.Pool{Running: 2, Queued: 5, Served: 99}}}
	return s
}

// shown returns the lines of a screen; the reversed one is marked.
func shown(sc *screen, width, height int) string {
	var b strings.Builder
	for _, l := range sc.draw(width, height) {
		mark := " "
		if l.reverse {
			mark = ">"
		}
		fmt.Fprintf(&b, "%s%s\n", mark, strings.TrimRight(l.text, " "))
	}
	return b.String()
}

// typed presses keys as a terminal sends them.
func typed(sc *screen, text string) (quit bool) {
	for _, k := range parseKeys([]byte(text)) {
		quit = sc.press(k) || quit
	}
	return quit
}

// newSample returns a screen that has had two answers.
func newSample() *screen {
	sc := newScreen("ofi+tcp://10.0.0.1:7000", time.Second)
	now := time.Unix(1000, 0)
	sc.answered(&stats.State{}, now)
	next := sample()
	next.Net = stats.Net{RequestsRecvd: 30_000, RequestsSent: 500, BytesRead: 4 << 20}
	sc.answered(next, now.Add(2*time.Second))
	return sc
}

// TestScreens compares each view at 80 and at 40 columns with its recorded text.
func TestScreens(t *testing.T) {
	for _, width := range []int{80, 40} {
		var b strings.Builder
		for _, keys := range []string{"", "2", "3", "4", "5", "6", "2j\r", "?", "4\x1b[B\r", "p"} {
			sc := newSample()
			if typed(sc, keys) {
				t.Errorf("%q ends top", keys)
			}
			fmt.Fprintf(&b, "keys %q\n%s", keys, shown(sc, width, 12))
		}
		clitest.Golden(t, fmt.Sprintf("top%d.golden", width), b.String())
	}
}

// TestKeys sorts, goes to the requests of a row and back, and ends.
func TestKeys(t *testing.T) {
	sc := newSample()
	firstRow := func() string { return strings.Fields(sc.draw(80, 12)[above].text)[0] }
	if got := firstRow(); got != "get@42" {
		t.Errorf("RPCs are sorted by running requests: %s is first", got)
	}
	if typed(sc, "ssss"); firstRow() != "a?[2J???b" { // by the age of the oldest
		t.Errorf("by age: %s is first", firstRow())
	}
	if typed(sc, "r"); firstRow() != "relay" {
		t.Errorf("by age, reversed: %s is first", firstRow())
	}
	if typed(sc, "\r"); sc.view != viewRequests || sc.only.rpc != "relay" || len(sc.table().rows) != 1 {
		t.Errorf("Enter leads to %+v", sc)
	}
	if typed(sc, "\x1b"); len(sc.table().rows) != 4 {
		t.Error("Escape does not show all requests again")
	}
	if typed(sc, "4\x1b[B\r"); sc.only.peer == "" || len(sc.table().rows) != 2 {
		t.Errorf("Enter on a peer leads to %+v", sc.only)
	}
	if typed(sc, "\r"); !sc.detail || !strings.Contains(shown(sc, 80, 20), "PEER\n   ofi+tcp://10.0.0.") {
		t.Errorf("Enter on a request shows %s", shown(sc, 80, 20))
	}
	if typed(sc, "\x1b"); sc.detail {
		t.Error("Escape does not leave the row")
	}
	typed(sc, "\x1b[5~\x1b[6~\x1b[6~\x1b[6~kkkkjjjj\x1bOA\x1b[C\x1b[D\x1b[1;5A\t?")
	if !sc.help {
		t.Error("? does not show the keys")
	}
	typed(sc, "x")
	typed(sc, "p")
	if !sc.paused || sc.help || !strings.HasPrefix(sc.draw(80, 12)[0].text, "paused") {
		t.Error("p does not pause")
	}
	for _, keys := range []string{"q", "\x03", "?\x03", "2\rq"} {
		if !typed(newSample(), keys) {
			t.Errorf("%q does not end top", keys)
		}
	}
}

// TestSplitKeys cuts the bytes of keys at each place, as a slow connection does. The keys stay the same, and no start of a key is longer than maxKey.
func TestSplitKeys(t *testing.T) {
	for _, text := range []string{"q", "\x1b[A", "\x1bOB", "\x1b[1;5C", "\x1b[5~k", "é↑", "\x1b", "\x1bx", "a\x1b[", "\xff\x1b[B\xe2\x86", "\x1b[" + strings.Repeat("1", 40) + "A\x0c"} {
		want := fmt.Sprint(parseKeys([]byte(text)))
		for cut := range len(text) + 1 {
			var keys []key
			first, rest := splitKeys([]byte(text[:cut]))
			keys = append(keys, parseKeys(first)...)
			second, last := splitKeys(append(rest, text[cut:]...))
			keys = append(append(keys, parseKeys(second)...), parseKeys(last)...)
			if len(rest) > maxKey || len(last) > maxKey {
				t.Errorf("%q: %d and %d bytes wait", text, len(rest), len(last))
			}
			if got := fmt.Sprint(keys); got != want && len(text) <= maxKey {
				t.Errorf("%q, cut at %d: keys %s, want %s", text, cut, got, want)
			}
		}
	}
}

// TestTrouble: a process that does not answer any more is named in the last line, and the last answer stays.
func TestTrouble(t *testing.T) {
	sc := newSample()
	sc.failed(errors.New("HG_HOSTUNREACH: " + hostile + strings.Repeat("x", 500)))
	text := shown(sc, 80, 12)
	if !strings.Contains(text, ">no answer: HG_HOSTUNREACH: a?[2J?") || !strings.Contains(text, "get@42") {
		t.Error(text)
	}
	sc.answered(sample(), time.Unix(1010, 0)) // counters went back
	if text = shown(sc, 80, 12); strings.Contains(text, "no answer") || !strings.Contains(text, "requests 0/s") {
		t.Error(text)
	}
}

// wantFit fails unless the lines of a screen fit it and print.
func wantFit(t *testing.T, sc *screen, width, height int) {
	t.Helper()
	lines := sc.draw(width, height)
	if len(lines) != max(height, 1) {
		t.Errorf("%d lines of %d", len(lines), height)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l.text); n > max(width, 1) {
			t.Errorf("%d columns of %d: %q", n, width, l.text)
		}
		if i := strings.IndexFunc(l.text, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("a terminal might obey %q", l.text)
		}
	}
}

// FuzzScreen: no answer of a process, no keys and no size of the terminal make the screen larger than the terminal, or print a character
// that the terminal obeys.
func FuzzScreen(f *testing.F) {
	f.Add("get", "ofi+tcp://1", int64(5), "2\r", 80, 24)
	f.Add(hostile, strings.Repeat("界", 300), int64(-1), "4\x1b[B\r\rss?", 1, 1)
	f.Add(hostile, "", int64(1<<62), "\x1b[\x1bO\xff\x1b[999", -5, 0)
	f.Fuzz(func(t *testing.T, name, peer string, n int64, keys string, width, height int) {
		width, height = min(width, 300), min(height, 100)
		s := sample()
		s.Addr, s.Age, s.MemoryBytes = peer, time.Duration(n), n
		s.Requests = append(s.Requests, stats.Request{State: name, RPC: name, Peer: peer, Pool: name, Age: time.Duration(n)})
		s.Calls = append(s.Calls, stats.Operation{Op: name, RPC: name, Peer: peer, Within: name, Bytes: n, Age: time.Duration(n)})
		s.Connections = append(s.Connections, stats.Connection{Peer: peer, State: name, Report: name, Received: n, Sent: n})
		s.Memory = append(s.Memory, stats.Memory{Kind: name, Place: peer, Count: int(n), Bytes: n})
		s.Pools = append(s.Pools, stats.NamedPool{Name: name, Pool: stats.Pool{Running: int(n), Served: uint64(n)}})
		s.Net = stats.Net{RequestsRecvd: uint64(n), BytesRead: uint64(n)}
		s.More = stats.More{Requests: int(n), Memory: int(n)}
		sc := newScreen(peer, time.Second)
		wantFit(t, sc, width, height)
		typed(sc, keys)
		sc.answered(s, time.Unix(1, 0))
		sc.answered(s, time.Unix(2, 0))
		wantFit(t, sc, width, height)
		for _, k := range parseKeys([]byte(keys)) {
			sc.press(k)
			wantFit(t, sc, width, height)
		}
		sc.failed(errors.New(name))
		wantFit(t, sc, width, height)
	})
}

// TestWithoutTerminal: top says what it needs.
func TestWithoutTerminal(t *testing.T) {
	server := clitest.Queried(t, nil)
	clitest.WantRun(t, cli.ExitFailure, []string{"top", server.Addr()}, "needs a terminal", "query --state")
	clitest.WantRun(t, cli.ExitUsage, []string{"top"}, "usage: cinnabar top ADDRESS")
	clitest.WantRun(t, cli.ExitUsage, []string{"top", server.Addr(), "-i", "1ms"}, "--interval is 1ms")
}
