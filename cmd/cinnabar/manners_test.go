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

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// A file that does not fit is refused before a byte of it is written; of other input the error says what was written.
func TestMemPutThatDoesNotFit(t *testing.T) {
	token := token5(t, servingMemory(t))
	content := func() string { return clitest.WantRun(t, cli.ExitOK, []string{"mem", "get", token}).Out.String() }
	six := clitest.WriteTemp(t, "six", []byte("123456"))
	clitest.WantRun(t, cli.ExitFailure, []string{"mem", "put", token, six}, "6 bytes do not fit: the region has 5 from --offset 0 on; nothing was written")
	clitest.WantRun(t, cli.ExitFailure, []string{"mem", "put", token, "--offset", "4", clitest.WriteTemp(t, "two", []byte("12"))}, "2 bytes do not fit: the region has 1 from --offset 4 on")
	if got := content(); got != "\x00\x00\x00\x00\x00" {
		t.Errorf("the region has %q", got)
	}
	f, err := os.Open(six) // as standard input, of which a byte was read before
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(f)
	if _, err := io.ReadFull(f, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var o clitest.Output
	if code := clitest.Run(t.Context(), []string{"mem", "put", token}, cli.Streams{In: f, Out: &o.Out, Err: &o.Err}); code != cli.ExitOK || content() != "23456" {
		t.Errorf("exit code %d, %s; the region has %q", code, &o.Err, content())
	}
	o = clitest.Output{}
	pipe := cli.Streams{In: strings.NewReader("abcdefg"), Out: &o.Out, Err: &o.Err}
	if code := clitest.Run(t.Context(), []string{"mem", "put", token}, pipe); code != cli.ExitFailure || !strings.Contains(o.Err.String(), "the input is longer than the 5 bytes of the region from --offset 0 on, which were written") {
		t.Errorf("exit code %d, %s", code, &o.Err)
	}
	if got := content(); got != "abcde" {
		t.Errorf("the region has %q", got)
	}
}

// A region that is larger than a server lends is refused with the options that set the limit.
func TestMemAllocTooLarge(t *testing.T) {
	clitest.WantRun(t, cli.ExitFailure, []string{"mem", "alloc", servingMemory(t), "100GiB"}, "--quota, --host-quota, --client-quota and --largest")
}

// Shells complete the values of options.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"send --protocol ":  "auto\nfast\nbasic\n",
		"perf verbs --op ":  "write\nwrite-imm\nread\nsend\natomic\n",
		"rping --device ":   cli.SoftwareDevice + "\n",
		"perf ":             "registration",
		"pingpong --trans":  "--transport",
		"send --digest ":    "sha256\nnone\n",
		"pingpong --device": "--device",
	} {
		clitest.WantRun(t, cli.ExitOK, append([]string{"__complete"}, strings.Split(args, " ")...), want)
	}
	o := clitest.WantRun(t, cli.ExitOK, []string{"__complete", "recv", "--dir", ""})
	if want := fmt.Sprintf(":%d\n", cobra.ShellCompDirectiveFilterDirs); !strings.Contains(o.Out.String(), want) {
		t.Errorf("--dir completes by %q, want directories, %q", &o.Out, want)
	}
}

// A build without RDMA hardware support says so in a sentence; that is no failure.
func TestDemoSaysWhichDevice(t *testing.T) {
	if len(cli.Devices(t.Context())) > 1 {
		t.Skip("this machine has RDMA devices")
	}
	dev, why, err := demoDevice(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(dev)
	if !strings.HasPrefix(why, "software device (") || strings.Contains(why, "unsupported operation") || strings.Contains(why, "CGO") {
		t.Errorf("the reason is %q", why)
	}
}

// Both ends of pingpong and the client of rping print their results for programs.
func TestPingpongAndRpingJSON(t *testing.T) {
	port, data := clitest.FreePort(t), clitest.FreePort(t)
	args := []string{"pingpong", "-p", port, "-n", "10", "--json"}
	server, seen, o := clitest.Start(t, "pingpong", "-p", port, "-n", "10", "--data-port", data)
	clitest.WaitLine(t, seen, "local address")
	code, client := clitest.RunProcess(t, append(args, "127.0.0.1")...)
	if code != cli.ExitOK || clitest.ExitOf(t, server) != cli.ExitOK {
		t.Fatalf("client: %s; server: %s", &client.Err, &o.Err)
	}
	var p pingpongJSON
	if err := json.Unmarshal(client.Out.Bytes(), &p); err != nil || p.Size != 4096 || p.Iterations != 10 || p.Usec <= 0 || p.Seconds <= 0 || p.MbitSeconds <= 0 {
		t.Errorf("%+v, %v from %q", p, err, &client.Out)
	}

	port = clitest.FreePort(t)
	server, seen, o = clitest.Start(t, "rping", "-s", "-d", "-a", "127.0.0.1", "-p", port)
	clitest.WaitLine(t, seen, "listening on")
	code, client = clitest.RunProcess(t, "rping", "-c", "-V", "-C", "7", "-a", "127.0.0.1", "-p", port, "--json")
	if code != cli.ExitOK || clitest.ExitOf(t, server) != cli.ExitOK {
		t.Fatalf("client: %s; server: %s", &client.Err, &o.Err)
	}
	var r rpingJSON
	if err := json.Unmarshal(client.Out.Bytes(), &r); err != nil || r.Rounds != 7 || r.Size != rpingSize || r.Usec <= 0 {
		t.Errorf("%+v, %v from %q", r, err, &client.Out)
	}
}

// A server of pingpong whose --data-port is in use ends and says so, before it waits for a client that would fail.
func TestPingpongDataPort(t *testing.T) {
	taken := clitest.UsedPort(t)
	code, server := clitest.RunProcess(t, "pingpong", "-p", clitest.FreePort(t), "--data-port", taken)
	if text := server.Err.String(); code != cli.ExitFailure || !strings.Contains(text, "--data-port "+taken) || server.Out.Len() != 0 {
		t.Errorf("exit code %d, and the server says %q and %q", code, &server.Out, text)
	}
}

// perf verbs with --data-port takes the data there, from one client after the other. If the port is in use it ends and says so.
func TestPerfVerbsDataPort(t *testing.T) {
	free, taken := clitest.FreePort(t), clitest.UsedPort(t)
	args := []string{"--size", "64", "--count", "10"}
	server, address, _, o := startVerbs(t, append(args, "--data-port", free)...)
	for range 2 {
		verbsLines(t, append(args, address)...)
	}
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	clitest.WantOK(t, server, o)
	code, refused := clitest.RunProcess(t, append([]string{"perf", "verbs", "--listen", "127.0.0.1:0", "--data-port", taken}, args...)...)
	if text := refused.Err.String(); code != cli.ExitFailure || !strings.Contains(text, "--data-port "+taken) || refused.Out.Len() != 0 {
		t.Errorf("exit code %d, and the server says %q and %q", code, &refused.Out, text)
	}
}

// While perf verbs measures a size, it prints the rate of each interval on standard error.
func TestPerfVerbsIntervals(t *testing.T) {
	for unit, args := range map[string][]string{
		"operations": {"--size", "4KiB", "--duration", "300ms"}, "round trips": {"--latency", "--op", "send", "--duration", "300ms"},
	} {
		server, address, _, o := startVerbs(t, append(args, "--once")...)
		code, client := clitest.RunProcess(t, append([]string{"perf", "verbs", address, "--interval", "20ms"}, args...)...)
		clitest.WantOK(t, server, o)
		if code != cli.ExitOK {
			t.Errorf("exit code %d: %s", code, &client.Err)
		}
		line := regexp.MustCompile(`(?m)^\d+ bytes, after \d+\.\d s: \d+ ` + unit + `/s, \d+\.\d\d MiB/s$`)
		if got := len(line.FindAllString(client.Err.String(), -1)); got == 0 || got != strings.Count(client.Err.String(), "\n") {
			t.Errorf("%d lines of intervals in %q", got, &client.Err)
		}
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

// The limits of the commands' servers are those of their engines.
func TestLimitsOfServers(t *testing.T) {
	for _, args := range []string{
		"perf serve ofi+tcp://127.0.0.1:0 --max-connections -1", "mem serve ofi+tcp://127.0.0.1:0 --max-memory much", "mem serve ofi+tcp://127.0.0.1:0 --max-memory 0",
	} {
		var o clitest.Output
		if code := clitest.Run(t.Context(), strings.Fields(args), o.Streams()); code != cli.ExitUsage {
			t.Errorf("%s: exit code %d: %s", args, code, &o.Err)
		}
	}
	var o clitest.Output
	if code := clitest.Run(t.Context(), strings.Fields("mem serve ofi+tcp://127.0.0.1:0 --max-memory 1MiB"), o.Streams()); code != cli.ExitFailure || !strings.Contains(o.Err.String(), "MaxMemory") {
		t.Errorf("too little memory: exit code %d: %s", code, &o.Err)
	}
}
