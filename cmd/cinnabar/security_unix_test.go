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

// secured are the commands that listen or dial with an engine, or with the software device.
var secured = []string{
	"send", "recv", "serve-files", "get", "ls", "rping", "pingpong",
	"perf serve", "perf rate", "perf bw-read", "perf bw-write", "perf verbs", "call", "ping", "query", "shutdown",
	"top",
	"mem serve", "mem alloc", "mem put", "mem get", "mem free", "mem stat",
}

// TestSecurityOptions checks that these commands have the options of tokens and certificates, with help and completion, and the others have not.
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

// TestSecuredDevice runs the commands of the software device with right, wrong and missing options.
// parity: A01 A03
func TestSecuredDevice(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	host := tlstest.Certificate{Name: "local", Hosts: []string{"127.0.0.1", "localhost"}}
	dir, in := t.TempDir(), t.TempDir()
	cert, key, roots := ca.Write(t, dir, ca.Issue(t, host))
	_, _, strangers := other.Write(t, t.TempDir(), other.Issue(t, host))
	tls := " --tls-cert " + cert + " --tls-key " + key + " --tls-ca " + roots
	token, wrong := writeToken(t), writeToken(t)
	file := clitest.WriteTemp(t, "file", []byte("a secret"))
	both := " --token-file " + token + tls
	recv := clitest.Start(t, strings.Fields("recv --overwrite --listen 0.0.0.0:0 --dir "+in+both)...)
	port := recv.Stdout.Expect(`^waiting for files at \S+:(\d+), for directory`)[1]
	to := "send " + file + " 127.0.0.1:" + port
	for _, test := range []struct {
		args string
		code int
		text string
	}{
		{to + both, cli.ExitOK, ""},
		{"send " + file + " localhost:" + port + both, cli.ExitOK, ""},
		{to + both + " --no-immediates", cli.ExitOK, ""},
		{to, cli.ExitFailure, "requires TLS"},
		{to + " --token-file " + token, cli.ExitFailure, "requires TLS"},
		{to + tls, cli.ExitFailure, "requires a token"},
		{to + tls + " --token-file " + wrong, cli.ExitFailure, "tokens of the two processes differ"},
		{to + " --token-file " + token + " --tls-ca " + roots, cli.ExitFailure, "certificate is missing or was refused"},
		{to + " --token-file " + token + " --tls-ca " + strangers, cli.ExitFailure, "unknown authority"},
		{to + both + " --tls-name other.example", cli.ExitFailure, "other.example"},
		{to + both + " --device mlx5_9", cli.ExitUsage, "are for cinnabar0"},
		{"recv --listen 127.0.0.1:0 --tls-ca " + roots, cli.ExitUsage, "needs a certificate"},
	} {
		clitest.WantRun(t, test.code, strings.Fields(test.args), test.text)
	}
	if got, err := os.ReadFile(filepath.Join(in, filepath.Base(file))); err != nil || string(got) != "a secret" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if err := os.WriteFile(roots, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(recv.Pid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	recv.Stderr.Expect("warning: the certificates were not reloaded")
	ca.Write(t, dir, ca.Issue(t, host))
	clitest.WantRun(t, cli.ExitOK, strings.Fields(to+both))
	recv.Interrupt()
	if code := recv.ExitCode(); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, recv.Stderr)
	}

	server := clitest.Start(t, strings.Fields("rping -s -P -d -a 127.0.0.1 -p 0"+both)...)
	port = server.Stdout.Expect(`^listening on .*:(\d+)$`)[1]
	ping := "rping -c -V -C 3 -a 127.0.0.1 -p " + port
	clitest.WantRun(t, cli.ExitOK, strings.Fields(ping+both))
	clitest.WantRun(t, cli.ExitFailure, strings.Fields(ping), "requires TLS")
	clitest.WantRun(t, cli.ExitFailure, strings.Fields(ping+tls), "requires a token")
	server.Interrupt()
	if code := server.ExitCode(); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, server.Stderr)
	}

	exchange := clitest.FreePort(t)
	server = clitest.Start(t, strings.Fields("pingpong -n 10 -p "+exchange+both)...)
	server.Stdout.Expect("local address")
	clitest.WantRun(t, cli.ExitOK, strings.Fields("pingpong -n 10 127.0.0.1 -p "+exchange+both))
	if code := server.ExitCode(); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, server.Stderr)
	}

	server = clitest.Start(t, strings.Fields("perf verbs --size 64 --count 10 --listen 127.0.0.1:0"+both)...)
	measure := "perf verbs --size 64 --count 10 " + server.Stdout.Expect(`127\.0\.0\.1:\d+`)[0]
	clitest.WantRun(t, cli.ExitOK, strings.Fields(measure+both))
	clitest.WantRun(t, cli.ExitOK, strings.Fields(strings.Replace(measure, "127.0.0.1", "localhost", 1)+both))
	clitest.WantRun(t, cli.ExitFailure, strings.Fields(measure), "requires TLS")
	clitest.WantRun(t, cli.ExitFailure, strings.Fields(measure+tls), "requires a token")
	server.Stderr.Expect("requires a token") // before that it measures, and its exit code would say that the interrupt has cut a measurement
	server.Interrupt()
	if code := server.ExitCode(); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, server.Stderr)
	}
}
