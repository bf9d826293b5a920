package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/manpage"
)

// completed returns the values by which a shell completes the last word of args, without their descriptions, and the directive behind them.
func completed(t *testing.T, args string) (values string, directive cobra.ShellCompDirective) {
	t.Helper()
	o := clitest.WantRun(t, cli.ExitOK, append([]string{"__completeNoDesc"}, strings.Split(args, " ")...))
	list, last, ok := strings.Cut(o.Out.String(), ":")
	for ok && strings.Contains(last, ":") { // a value may have a colon; the directive stands behind the last one
		more, rest, _ := strings.Cut(last, ":")
		list, last = list+":"+more, rest
	}
	n, err := strconv.Atoi(strings.TrimSpace(last))
	if err != nil {
		t.Fatalf("%s: %q", args, &o.Out)
	}
	return strings.Join(strings.Fields(list), " "), cobra.ShellCompDirective(n)
}

// TestCompletionOfValues completes protocols of addresses, devices, levels, and names of files where the command takes them and nowhere else.
func TestCompletionOfValues(t *testing.T) {
	const (
		none      = cobra.ShellCompDirectiveNoFileComp
		files     = cobra.ShellCompDirectiveDefault
		more      = cobra.ShellCompDirectiveNoSpace | none
		addresses = "ofi+tcp:// ofi+tcps:// ofi+verbs:// na+sm://"
	)
	for args, want := range map[string]struct {
		values    string
		directive cobra.ShellCompDirective
	}{
		"perf serve ":                  {addresses, more},
		"mem serve ":                   {addresses, more},
		"ping ":                        {addresses, more},
		"ping ofi+tcp://a ":            {"", none},
		"call ofi+tcp://a ":            {"", none},
		"perf rate ofi+tcp://a ":       {addresses, more},
		"doctor ofi+tcp://a ":          {addresses, more},
		"info ":                        {"ofi+tcp ofi+tcps ofi+verbs na+sm", none},
		"send ":                        {"", files},
		"send a b ":                    {"", files},
		"recv ":                        {"", none},
		"wire ":                        {"", files},
		"mem put token ":               {"", files},
		"mem put ":                     {"", none},
		"pingpong ":                    {"", none},
		"rping ":                       {"", none},
		"recv --digest ":               {"any sha256 blake3 none", none},
		"pingpong --mtu ":              {"256 512 1024 2048 4096", none},
		"perf serve --log-level ":      {"trace debug info warning error critical", none},
		"ping --device ":               {"software " + cli.SoftwareDevice, none},
		"recv --device ":               {cli.SoftwareDevice, none},
		"recv --timeout ":              {"", none},
		"mem get token --output ":      {"", files},
		"perf serve x --port-file ":    {"", files},
		"perf serve x --max-memory ":   {"", none},
		"perf rate --inflight ":        {"", none},
		"call ofi+tcp://a n --bulk-in": {"--bulk-in", none},
	} {
		values, directive := completed(t, args)
		if values != want.values || directive != want.directive {
			t.Errorf("%q completes by %q and %d, want %q and %d", args, values, directive, want.values, want.directive)
		}
	}
}

// TestCompletionOfEveryOption completes each option of each command by a rule of its own. A shell would complete names of files otherwise, so these
// are the options that take some.
func TestCompletionOfEveryOption(t *testing.T) {
	var files []string
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		if isGroup(words, cmd) || words == "help" {
			return
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if _, has := cmd.GetFlagCompletionFunc(f.Name); !has && f.NoOptDefVal == "" && len(f.Annotations) == 0 && !f.Hidden {
				files = append(files, words+" --"+f.Name)
			}
		})
	})
	want := []string{"call --bulk-in", "call --bulk-out", "get --output", "info --log", "mem get --output", "perf bw-read --port-file", "perf bw-write --port-file", "perf rate --port-file", "perf serve --port-file"}
	if got := strings.Join(files, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("options that complete by names of files:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// TestManualPages makes the page of each command: it names all options and all sub-commands of the command.
func TestManualPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		o := clitest.WantRun(t, cli.ExitOK, append([]string{"man"}, strings.Fields(words)...))
		text := strings.ReplaceAll(o.Out.String(), `\-`, "-")
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(text, `\fB--`+f.Name+`\fR`) {
				t.Errorf("the page does not name --%s", f.Name)
			}
		})
		for _, c := range cmd.Commands() {
			if !c.Hidden && !strings.Contains(text, strings.TrimSuffix(manpage.FileName(c), ".1")) {
				t.Errorf("the page does not name %s", c.Name())
			}
		}
	})
}

// TestManualPagesLint lets mandoc or groff look for mistakes in the pages.
func TestManualPagesLint(t *testing.T) {
	dir := t.TempDir()
	clitest.WantRun(t, cli.ExitOK, []string{"man", "--dir", dir})
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	ran := false
	for _, checker := range [][]string{{"mandoc", "-T", "lint", "-W", "warning"}, {"groff", "-man", "-Tutf8", "-ww", "-z"}} {
		path, err := exec.LookPath(checker[0])
		if err != nil {
			continue
		}
		ran = true
		cmd := exec.CommandContext(t.Context(), path, append(checker[1:], pages...)...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", checker[0], err, out)
		}
	}
	if !ran {
		t.Skip("mandoc and groff are not installed")
	}
}
