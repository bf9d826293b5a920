package filexfer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/identity"
)

// slowly is a limit at which a transfer of 30 MiB is not over before its lanes are connected.
const slowly = "60MB/s"

// sentLanes is the end of a result by several lanes.
var sentLanes = regexp.MustCompile(`MiB/s, [2-4] lanes`)

// Files and directories cross by several lanes, with and without tokens, limits and a receiver of one file.
//
// parity: X07
func TestSendLanes(t *testing.T) {
	token := clitest.WriteTemp(t, "token", []byte(identity.NewToken().Reveal()))
	file := randomFiles(t, 40<<20)[0]
	for name, c := range map[string]struct{ send, recv []string }{
		"plain":                 {},
		"token":                 {[]string{"--token-file", token}, []string{"--token-file", token}},
		"limits":                {nil, []string{"--limit", "40MB/s"}},
		"once":                  {nil, []string{"--once"}},
		"fewer at the receiver": {nil, []string{"--max-lanes", "2", "--max-connections", "9"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := startRecv(t, "127.0.0.1:0", c.recv...)
			code, client := clitest.RunProcess(t, append([]string{"send", "--lanes", "4", "--limit", slowly, file, server.addr}, c.send...)...)
			if code != 0 || !strings.Contains(client.Stderr.String(), " for each of ") || !sentLanes.MatchString(client.Stdout.String()) {
				t.Errorf("exit code %d: %s%s", code, client.Stdout, client.Stderr)
			}
			server.Stdout.Expect(`^received size-41943040: 41943040 bytes from .* lanes$`)
			server.sameFile(t, file)
			if name == "once" && server.ExitCode() != 0 {
				t.Errorf("recv --once: %s", server.Stderr)
			}
		})
	}
}

// A directory crosses by several lanes.
func TestSendLanesTree(t *testing.T) {
	big := randomFiles(t, 30<<20)[0]
	root := filepath.Dir(big)
	for _, name := range []string{"a", "b/c", "d"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := startRecv(t, "127.0.0.1:0")
	code, client := clitest.RunProcess(t, "send", "-r", "--lanes", "3", "--limit", slowly, root, server.addr)
	if code != 0 || !sentLanes.MatchString(client.Stdout.String()) {
		t.Fatalf("exit code %d: %s%s", code, client.Stdout, client.Stderr)
	}
	server.dir = filepath.Join(server.dir, filepath.Base(root))
	server.sameFile(t, big)
	if got, err := os.ReadFile(filepath.Join(server.dir, "b/c")); err != nil || string(got) != "b/c" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Files and directories are pulled by several lanes, with and without tokens and limits. The server grants no more than it may.
//
// parity: X07
func TestGetLanes(t *testing.T) {
	token := clitest.WriteTemp(t, "token", []byte(identity.NewToken().Reveal()))
	big := randomFiles(t, 40<<20)[0]
	public := filepath.Dir(big)
	if err := errors.Join(os.MkdirAll(filepath.Join(public, "d"), 0o755), os.WriteFile(filepath.Join(public, "d", "a"), []byte("a"), 0o600),
		os.Link(big, filepath.Join(public, "d", "big")), os.Symlink("a", filepath.Join(public, "d", "link"))); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(big)
	for of, c := range map[string]struct {
		get, serve []string
		one        bool // one lane is used
	}{
		"plain":                {get: []string{name}},
		"directory":            {get: []string{"-r", "d"}},
		"everything":           {get: []string{"-r", ".", "--output", "all", "--digest", "blake3"}},
		"token":                {get: []string{name, "--token-file", token}, serve: []string{"--token-file", token}},
		"limit of the server":  {get: []string{name}, serve: []string{"--limit", "40MB/s"}},
		"fewer at the server":  {get: []string{name}, serve: []string{"--max-lanes", "2", "--max-connections", "9"}},
		"one at the server":    {get: []string{name}, serve: []string{"--max-lanes", "1"}, one: true},
		"a server that stores": {get: []string{name}, serve: []string{"--write"}},
		"a small file":         {get: []string{"d/a"}, one: true},
	} {
		t.Run(of, func(t *testing.T) {
			_, addr := startServer(t, public, c.serve...)
			in := t.TempDir()
			code, client := clitest.RunProcess(t, append([]string{"get", addr, "--lanes", "4", "--limit", slowly, "--dir", in}, c.get...)...)
			if code != 0 || c.one == strings.Contains(client.Stderr.String(), " for each of ") || c.one == sentLanes.MatchString(client.Stdout.String()) {
				t.Errorf("exit code %d: %s%s", code, client.Stdout, client.Stderr)
			}
			for _, f := range filesBelow(t, in) {
				got, err := os.ReadFile(filepath.Join(in, f))
				want, werr := os.ReadFile(filepath.Join(public, strings.TrimPrefix(f, "all/")))
				if filepath.Base(f) == "a" && filepath.Dir(f) == "." {
					want, werr = os.ReadFile(filepath.Join(public, "d/a"))
				}
				if err != nil || werr != nil || !bytes.Equal(got, want) {
					t.Errorf("%s differs: %v, %v", f, err, werr)
				}
			}
			if n := len(filesBelow(t, in)); n != map[string]int{"directory": 3, "everything": 4}[of]+map[bool]int{true: 1}[of != "directory" && of != "everything"] {
				t.Errorf("%q are here", filesBelow(t, in))
			}
		})
	}
}

// A one-time code protects all lanes, and is good for all lanes of one file.
func TestCodeLanes(t *testing.T) {
	path := randomFiles(t, 40<<20)[0]
	sender, addr, code := startCode(t, path, "--lanes", "4", "--limit", slowly)
	server := &recvProcess{dir: t.TempDir()}
	server.Process = clitest.Start(t, "recv", "--listen", addr, "--dir", server.dir, "--code", code)
	if server.ExitCode() != 0 || sender.ExitCode() != 0 {
		t.Fatalf("the receiver: %s; the sender: %s", server.Stderr, sender.Stderr)
	}
	if text := sender.Stdout.String(); !sentLanes.MatchString(text) {
		t.Errorf("the sender prints %s", text)
	}
	server.sameFile(t, path)
}

func TestLanesOptions(t *testing.T) {
	file := randomFiles(t, 1)[0]
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"send", "--lanes", "0", file, "localhost"}, "invalid --lanes 0: 1 to 64"},
		{[]string{"send", "--lanes", "65", file, "localhost"}, "invalid --lanes 65: 1 to 64"},
		{[]string{"send", "--lanes", "2", "--protocol", "basic", file, "localhost"}, "--lanes 2 is for the fast protocol"},
		{[]string{"recv", "--max-lanes", "-1"}, "invalid --max-lanes -1: 1 to 64"},
		{[]string{"recv", "--max-lanes", "65"}, "invalid --max-lanes 65: 1 to 64"},
	} {
		if code, p := clitest.RunProcess(t, c.args...); code != cli.ExitUsage || !strings.Contains(p.Stderr.String(), c.says) {
			t.Errorf("%q: exit code %d: %s", c.args, code, p.Stderr)
		}
	}
}
