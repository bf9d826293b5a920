package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/margo"
)

// Shells complete the values of options.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"send --protocol ":  "auto\nfast\nbasic\n",
		"perf verbs --op ":  "write\nwrite-imm\nread\nsend\natomic\n",
		"rping --device ":   cli.SoftwareDevice + "\n",
		"perf ":             "registration",
		"pingpong --trans":  "--transport",
		"send --digest ":    "sha256\nblake3\nnone\n",
		"pingpong --device": "--device",
	} {
		clitest.WantRun(t, cli.ExitOK, append([]string{"__complete"}, strings.Split(args, " ")...), want)
	}
	o := clitest.WantRun(t, cli.ExitOK, []string{"__complete", "recv", "--dir", ""})
	if want := fmt.Sprintf(":%d\n", cobra.ShellCompDirectiveFilterDirs); !strings.Contains(o.Out.String(), want) {
		t.Errorf("--dir completes by %q, want directories, %q", &o.Out, want)
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
	for _, m := range regexp.MustCompile("`(?:perf|mem|token) ([a-z-]+)").FindAllStringSubmatch(string(text), -1) {
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
	if code := clitest.Run(t.Context(), strings.Fields("mem serve ofi+tcp://127.0.0.1:0 --max-memory 1MiB"), o.Streams()); code != cli.ExitUsage || !strings.Contains(o.Err.String(), "MaxMemory") {
		t.Errorf("too little memory: exit code %d: %s", code, &o.Err)
	}
}

// Every command that uses a device takes its name, and lists those that there are if it is none of them.
func TestDeviceOfEveryCommand(t *testing.T) {
	for args, code := range map[string]int{
		"send main.go 127.0.0.1:1":  cli.ExitFailure,
		"recv --listen 127.0.0.1:0": cli.ExitFailure,
		"pingpong":                  cli.ExitFailure,
		"rping -s":                  cli.ExitFailure,
		"perf verbs":                cli.ExitFailure,
		"demo":                      cli.ExitFailure,
		"devices":                   cli.ExitFailure,
	} {
		clitest.WantRun(t, code, append(strings.Fields(args), "--device", "nope"), "device 'nope' wasn't found; there is "+cli.SoftwareDevice)
	}
	clitest.WantRun(t, cli.ExitUsage, []string{"recv", "--no-immediates", "--device", "other0"}, "--no-immediates is for "+cli.SoftwareDevice)
}

// TestVersion prints the versions of the program, of Go, and of Mercury's headers.
// parity: H04
func TestVersion(t *testing.T) {
	if margo.MercuryProtocol != 5 { // that of Mercury 2.4.1
		t.Errorf("protocol %d", margo.MercuryProtocol)
	}
	clitest.WantRun(t, 0, []string{"--version"}, "cinnabar version ", " "+runtime.Version()+" ", runtime.GOOS+"/"+runtime.GOARCH, "Mercury protocol 5\n")
}
