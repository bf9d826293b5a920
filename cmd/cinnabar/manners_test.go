package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// A file that does not fit is refused before a byte of it is written; of other input the error says what was written.
func TestMemPutThatDoesNotFit(t *testing.T) {
	token := token5(t, servingMemory(t))
	content := func() string { return wantRun(t, exitOK, []string{"mem", "get", token}).out.String() }
	six := writeTemp(t, "six", []byte("123456"))
	wantRun(t, exitFailure, []string{"mem", "put", token, six}, "6 bytes do not fit: the region has 5 from --offset 0 on; nothing was written")
	wantRun(t, exitFailure, []string{"mem", "put", token, "--offset", "4", writeTemp(t, "two", []byte("12"))}, "2 bytes do not fit: the region has 1 from --offset 4 on")
	if got := content(); got != "\x00\x00\x00\x00\x00" {
		t.Errorf("the region has %q", got)
	}
	f, err := os.Open(six) // as standard input, of which a byte was read before
	if err != nil {
		t.Fatal(err)
	}
	defer shut(f)
	if _, err := io.ReadFull(f, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var o output
	if code := run(t.Context(), []string{"mem", "put", token}, streams{in: f, out: &o.out, err: &o.err}); code != exitOK || content() != "23456" {
		t.Errorf("exit code %d, %s; the region has %q", code, &o.err, content())
	}
	o = output{}
	pipe := streams{in: strings.NewReader("abcdefg"), out: &o.out, err: &o.err}
	if code := run(t.Context(), []string{"mem", "put", token}, pipe); code != exitFailure || !strings.Contains(o.err.String(), "the input is longer than the 5 bytes of the region from --offset 0 on, which were written") {
		t.Errorf("exit code %d, %s", code, &o.err)
	}
	if got := content(); got != "abcde" {
		t.Errorf("the region has %q", got)
	}
}

// A region that is larger than a server lends is refused with the options that set the limit.
func TestMemAllocTooLarge(t *testing.T) {
	wantRun(t, exitFailure, []string{"mem", "alloc", servingMemory(t), "100GiB"}, "--quota, --host-quota, --client-quota and --largest")
}

// A version that Go makes of a commit has the commit already.
func TestVersionHasCommitOnce(t *testing.T) {
	const commit = "16797f8aabbccddeeff00112233445566778899a"
	for version, want := range map[string]int{"v0.0.0-20261122190000-16797f8aabbc": 1, "(devel)": 1, "v1.2.3": 1} {
		v := buildVersion{Version: version, Commit: commit, Go: "go1", Platform: "x/y"}
		if got := strings.Count(v.String(), commit[:pseudoCommit]); got != want {
			t.Errorf("%s: the commit is there %d times", v, got)
		}
	}
	if v := (buildVersion{Version: "(devel)", Go: "go1", Platform: "x/y", Mercury: 5}).String(); v != "(devel) go1 x/y, Mercury protocol 5" {
		t.Errorf("without a commit: %q", v)
	}
}

// Shells complete the values of options.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"send --protocol ":  "auto\nfast\nbasic\n",
		"perf verbs --op ":  "write\nwrite-imm\nread\nsend\natomic\n",
		"rping --device ":   softwareDevice + "\n",
		"perf ":             "registration",
		"pingpong --trans":  "--transport",
		"send --digest ":    "sha256\nnone\n",
		"pingpong --device": "--device",
	} {
		wantRun(t, exitOK, append([]string{"__complete"}, strings.Split(args, " ")...), want)
	}
	o := wantRun(t, exitOK, []string{"__complete", "recv", "--dir", ""})
	if want := fmt.Sprintf(":%d\n", cobra.ShellCompDirectiveFilterDirs); !strings.Contains(o.out.String(), want) {
		t.Errorf("--dir completes by %q, want directories, %q", &o.out, want)
	}
}

// A build without RDMA hardware support says so in a sentence; that is no failure.
func TestDemoSaysWhichDevice(t *testing.T) {
	if len(deviceList(t.Context())) > 1 {
		t.Skip("this machine has RDMA devices")
	}
	dev, why, err := demoDevice(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer shut(dev)
	if !strings.HasPrefix(why, "software device (") || strings.Contains(why, "unsupported operation") || strings.Contains(why, "CGO") {
		t.Errorf("the reason is %q", why)
	}
}

// Both ends of pingpong and the client of rping print their results for programs.
func TestPingpongAndRpingJSON(t *testing.T) {
	port, data := freePort(t), freePort(t)
	args := []string{"pingpong", "-p", port, "-n", "10", "--json"}
	server, seen, o := start(t, "pingpong", "-p", port, "-n", "10", "--data-port", data)
	waitLine(t, seen, "local address")
	code, client := runProcess(t, append(args, "127.0.0.1")...)
	if code != exitOK || exitOf(t, server) != exitOK {
		t.Fatalf("client: %s; server: %s", &client.err, &o.err)
	}
	var p pingpongJSON
	if err := json.Unmarshal(client.out.Bytes(), &p); err != nil || p.Size != 4096 || p.Iterations != 10 || p.Usec <= 0 || p.Seconds <= 0 || p.MbitSeconds <= 0 {
		t.Errorf("%+v, %v from %q", p, err, &client.out)
	}

	port = freePort(t)
	server, seen, o = start(t, "rping", "-s", "-d", "-a", "127.0.0.1", "-p", port)
	waitLine(t, seen, "listening on")
	code, client = runProcess(t, "rping", "-c", "-V", "-C", "7", "-a", "127.0.0.1", "-p", port, "--json")
	if code != exitOK || exitOf(t, server) != exitOK {
		t.Fatalf("client: %s; server: %s", &client.err, &o.err)
	}
	var r rpingJSON
	if err := json.Unmarshal(client.out.Bytes(), &r); err != nil || r.Rounds != 7 || r.Size != rpingSize || r.Usec <= 0 {
		t.Errorf("%+v, %v from %q", r, err, &client.out)
	}
}

// A server of pingpong whose --data-port is in use ends and says so, before it waits for a client that would fail.
func TestPingpongDataPort(t *testing.T) {
	taken := usedPort(t)
	code, server := runProcess(t, "pingpong", "-p", freePort(t), "--data-port", taken)
	if text := server.err.String(); code != exitFailure || !strings.Contains(text, "--data-port "+taken) || server.out.Len() != 0 {
		t.Errorf("exit code %d, and the server says %q and %q", code, &server.out, text)
	}
}

// perf verbs with --data-port takes the data there, from one client after the other. If the port is in use it ends and says so.
func TestPerfVerbsDataPort(t *testing.T) {
	free, taken := freePort(t), usedPort(t)
	args := []string{"--size", "64", "--count", "10"}
	server, address, _, o := startVerbs(t, append(args, "--data-port", free)...)
	for range 2 {
		verbsLines(t, append(args, address)...)
	}
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	wantOK(t, server, o)
	code, refused := runProcess(t, append([]string{"perf", "verbs", "--listen", "127.0.0.1:0", "--data-port", taken}, args...)...)
	if text := refused.err.String(); code != exitFailure || !strings.Contains(text, "--data-port "+taken) || refused.out.Len() != 0 {
		t.Errorf("exit code %d, and the server says %q and %q", code, &refused.out, text)
	}
}

// While perf verbs measures a size, it prints the rate of each interval on standard error.
func TestPerfVerbsIntervals(t *testing.T) {
	for unit, args := range map[string][]string{
		"operations": {"--size", "4KiB", "--duration", "300ms"}, "round trips": {"--latency", "--op", "send", "--duration", "300ms"},
	} {
		server, address, _, o := startVerbs(t, append(args, "--once")...)
		code, client := runProcess(t, append([]string{"perf", "verbs", address, "--interval", "20ms"}, args...)...)
		wantOK(t, server, o)
		if code != exitOK {
			t.Errorf("exit code %d: %s", code, &client.err)
		}
		line := regexp.MustCompile(`(?m)^\d+ bytes, after \d+\.\d s: \d+ ` + unit + `/s, \d+\.\d\d MiB/s$`)
		if got := len(line.FindAllString(client.err.String(), -1)); got == 0 || got != strings.Count(client.err.String(), "\n") {
			t.Errorf("%d lines of intervals in %q", got, &client.err)
		}
	}
}

// The rate of an interval is that of the interval alone.
func TestRateLines(t *testing.T) {
	var o output
	made := uint64(0)
	lines := make(chan string)
	s := streams{err: writerFunc(func(b []byte) (int, error) { lines <- string(b); return len(b), nil })}
	open := make(chan struct{})
	stop := rateLines{s: s, every: time.Millisecond, size: 8, bytes: mebibyte, unit: "calls", made: func() uint64 { made += 10; return made }}.start(open)
	select {
	case line := <-lines:
		t.Errorf("before the measurement begins: %q", line)
	default:
	}
	close(open)
	for range 3 {
		if line := <-lines; !strings.HasPrefix(line, "8 bytes, after ") || !strings.Contains(line, " calls/s, ") {
			t.Errorf("line %q", line)
		}
	}
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	for {
		select {
		case <-lines: // one that was under way
			continue
		case <-done:
		}
		break
	}
	rateLines{s: o.streams(), unit: "calls"}.start(open)() // never: made is nil
	if o.err.Len() > 0 {
		t.Errorf("without an interval: %q", &o.err)
	}
	if _, err := interval(true, -time.Second, o.streams()); exitCode(t.Context(), err) != exitUsage {
		t.Errorf("a negative interval: %v", err)
	}
}

// The manual names every command.
func TestManualNamesCommands(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile("`(?:cinnabar )?([a-z-]+)(?: [^`]*)?`").FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
	}
	for _, m := range regexp.MustCompile("`(?:perf|mem) ([a-z-]+)").FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
	}
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		if words != "" && !strings.HasPrefix(words, "completion ") && !names[cmd.Name()] {
			t.Error("docs/command.md does not name the command")
		}
	})
}

// Text is folded at spaces; paragraphs and indented lines stay.
func TestFold(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"one two three":               "one two\nthree",
		"one\ntwo\nthree":             "one two\nthree",
		"one\n\ntwo":                  "one\n\ntwo",
		"unbreakable-word and":        "unbreakable-word\nand",
		"one\n    indented more here": "one\n    indented more here",
		"äöüß äöüß":                   "äöüß äöüß", // nine characters
	} {
		if got := fold(text, 9); got != want {
			t.Errorf("fold(%q) = %q, want %q", text, got, want)
		}
	}
}
