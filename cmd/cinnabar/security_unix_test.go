//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/identity"
	"cinnabar/internal/testproc"
	"cinnabar/internal/tlstest"
)

// secured are the commands that listen or dial with an engine.
var secured = []string{
	"perf serve", "perf rate", "perf bw-read", "perf bw-write", "call", "ping", "query", "shutdown",
	"top",
	"mem serve", "mem alloc", "mem put", "mem get", "mem free", "mem stat",
}

// TestSecurityOptions checks that the commands with engines have the options of tokens and certificates, with help and completion, and the others have not.
func TestSecurityOptions(t *testing.T) {
	has := map[string]bool{}
	for _, words := range secured {
		has[words] = true
	}
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		for _, name := range []string{"token-file", "tls-cert", "tls-key", "tls-ca", "tls-name"} {
			f := cmd.Flags().Lookup(name)
			if (f != nil) != has[words] {
				t.Errorf("--%s: %v, want it: %v", name, f, has[words])
			}
			if f != nil && f.Usage == "" {
				t.Errorf("--%s has no help", name)
			}
		}
	})
	clitest.WantRun(t, cli.ExitOK, []string{"__complete", "ping", "--tls-"}, "--tls-ca")
	o := clitest.WantRun(t, cli.ExitOK, []string{"__complete", "ping", "--tls-name", ""})
	if !strings.Contains(o.Out.String(), ":4\n") { // no names of files
		t.Errorf("--tls-name completes by %q", &o.Out)
	}
}

// writeToken writes the token that cinnabar token new prints to a file.
func writeToken(t *testing.T) string {
	t.Helper()
	o := clitest.WantRun(t, cli.ExitOK, []string{"token", "new"})
	if _, err := identity.ParseToken(o.Out.String()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, o.Out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSecuredCommands calls a server with a token and one with certificates, with right, wrong and missing options.
// parity: A03
func TestSecuredCommands(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	host := tlstest.Certificate{Name: "local", Hosts: []string{"127.0.0.1"}}
	dir := t.TempDir()
	cert, key, roots := ca.Write(t, dir, ca.Issue(t, host))
	_, _, strangers := other.Write(t, t.TempDir(), other.Issue(t, host))
	tls := " --tls-cert " + cert + " --tls-key " + key + " --tls-ca " + roots
	token, wrong := writeToken(t), writeToken(t)
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("cinnabar-token:AAECAwQFBgc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func(args string) (p *testproc.Process, address string) {
		p = clitest.Start(t, strings.Fields("perf serve "+args)...)
		return p, p.Stdout.Expect(`^ofi\+tcps?://127\.0\.0\.1:\d+$`)[0]
	}
	open, plain := serve("ofi+tcp://127.0.0.1:0 --token-file " + token)
	locked, secure := serve("ofi+tcps://127.0.0.1:0 --token-file " + token + tls)
	for _, test := range []struct {
		args string
		code int
		text string
	}{
		{"ping " + plain + " -n 1 --token-file " + token, cli.ExitOK, ""},
		{"perf rate " + plain + " --size 64 --count 2 --token-file " + token, cli.ExitOK, ""},
		{"ping " + plain + " -n 1", cli.ExitFailure, "requires a token"},
		{"ping " + plain + " -n 1 --token-file " + wrong, cli.ExitFailure, "tokens of the two processes differ"},
		{"ping " + plain + " -n 1 --token-file " + short, cli.ExitFailure, "64 bits; at least 128"},
		{"ping " + plain + " -n 1 --token-file " + dir + "/none", cli.ExitFailure, "no such file"},
		{"ping " + plain + " -n 1 --tls-ca " + roots, cli.ExitUsage, "which has no TLS"},
		{"ping " + secure + " -n 1 --token-file " + token + tls, cli.ExitOK, ""},
		{"perf bw-read " + secure + " --size 4096 --count 2 --token-file " + token + tls, cli.ExitOK, ""},
		{"call " + secure + " nosuch --token-file " + token + tls, cli.ExitFailure, "HG_NOENTRY"},
		{"query " + secure + " --token-file " + token + tls, cli.ExitFailure, "query"},
		{"ping " + secure + " -n 1 " + tls, cli.ExitFailure, "requires a token"},
		{"ping " + secure + " -n 1 --token-file " + token, cli.ExitFailure, "certificate"},
		{"ping " + secure + " -n 1 --token-file " + token + " --tls-ca " + strangers, cli.ExitFailure, "certificate"},
		{"ping " + secure + " -n 1 --token-file " + token + tls + " --tls-name other.example", cli.ExitFailure, "other.example"},
		{"ping " + secure + " -n 1 --tls-cert " + cert, cli.ExitFailure, "belong together"},
		{"perf serve na+sm --token-file " + token, cli.ExitUsage, "Token is set"},
	} {
		clitest.WantRun(t, test.code, strings.Fields(test.args), test.text)
	}
	if err := os.WriteFile(roots, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(locked.Pid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	locked.Stderr.Expect("warning: the certificates were not reloaded")
	ca.Write(t, dir, ca.Issue(t, host))
	clitest.WantRun(t, cli.ExitOK, strings.Fields("ping "+secure+" -n 1 --token-file "+token+tls))
	open.Interrupt()
	clitest.WantOK(t, open)
	locked.Interrupt()
	if code := locked.ExitCode(); code != cli.ExitOK {
		t.Errorf("exit code %d", code)
	}
}
