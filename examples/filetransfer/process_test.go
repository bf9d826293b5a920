package filetransfer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"cinnabar/internal/testproc"
)

// programs is the folder with the two programs, built once.
var programs string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(testproc.BuildInto(&programs, "./client", "./server")))
}

// command is a process of one of the programs.
func command(program string, args ...string) testproc.Command {
	return testproc.Command{Path: filepath.Join(programs, program), Args: args}
}

// await returns the next line that contains text.
func await(s *testproc.Stream, text string) string {
	return s.Expect("^.*" + regexp.QuoteMeta(text) + ".*$")[0]
}

// serverProcess is a server with a directory of its own.
type serverProcess struct {
	*testproc.Process
	dir, addr string
}

func startServer(t *testing.T, host string) *serverProcess {
	t.Helper()
	dir := t.TempDir()
	p := testproc.Start(t, command("server", "-listen", host+":0", "-dir", dir))
	return &serverProcess{p, dir, strings.TrimPrefix(await(p.Stderr, "listening at "), "listening at ")}
}

// interrupt sends what ^C sends, and wants the exit code to be 0.
func (s *serverProcess) interrupt(t *testing.T) {
	t.Helper()
	s.Interrupt()
	if err := s.Wait(); err != nil {
		t.Errorf("the server ended with %v: %s", err, s.Stderr)
	}
}

// files returns the names in the server's directory.
func (s *serverProcess) files(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// runClient runs a client to its end.
func runClient(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := testproc.Run(t, command("client", args...))
	return p.ExitCode(), p.Stdout.String(), p.Stderr.String()
}

// input makes a file of random bytes in a folder of its own.
func input(t *testing.T, name string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{byte(size), 1}), size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// digest returns the SHA-256 of a file.
func digest(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// send sends a file and compares it with what arrived.
func (s *serverProcess) send(t *testing.T, path string) {
	t.Helper()
	if code, _, stderr := runClient(t, s.addr, path); code != 0 || stderr != "" {
		t.Errorf("the client ended with %d: %s", code, stderr)
		return
	}
	name := filepath.Base(path)
	await(s.Stdout, "finished transferring "+name)
	if digest(t, path) != digest(t, filepath.Join(s.dir, name)) {
		t.Errorf("%s arrived with another digest", name)
	}
}

// Both programs print what the paper prints.
// parity: B01 B07 B13
func TestTranscripts(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	path := input(t, "test-file", 25<<20)
	code, stdout, stderr := runClient(t, s.addr, path)
	if code != 0 || stderr != "" {
		t.Errorf("the client ended with %d: %s", code, stderr)
	}
	await(s.Stdout, "finished")
	s.interrupt(t)
	for name, got := range map[string]string{"client": stdout, "server": s.Stdout.String()} {
		want, err := os.ReadFile(filepath.Join("testdata", name+".golden"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got, want := s.Stderr.String(), "listening at "+s.addr+"\n"; got != want {
		t.Errorf("the server complains: %s", got)
	}
	if digest(t, path) != digest(t, filepath.Join(s.dir, "test-file")) {
		t.Error("the file arrived with another digest")
	}
}

func TestFilesOfEverySize(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	for _, size := range []int64{0, 1, 255, BufferSize - 1, BufferSize, BufferSize + 1, 2 * BufferSize, 25 << 20} {
		s.send(t, input(t, fmt.Sprintf("file-%d", size), size))
	}
	s.interrupt(t)
}

func TestOverIPv6(t *testing.T) {
	if _, err := os.Stat("/proc/net/if_inet6"); runtime.GOOS == "linux" && errors.Is(err, os.ErrNotExist) {
		t.Skip("this machine has no IPv6")
	}
	s := startServer(t, "[::1]")
	s.send(t, input(t, "six", 1000))
}

// parity: B16 B42
func TestClientsAtOnce(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	var clients sync.WaitGroup
	paths := make([]string, 8)
	for i := range paths {
		paths[i] = input(t, fmt.Sprint("file", i), 2*BufferSize+int64(i))
		clients.Go(func() {
			if code, _, stderr := runClient(t, s.addr, paths[i]); code != 0 {
				t.Errorf("client %d ended with %d: %s", i, code, stderr)
			}
		})
	}
	clients.Wait()
	for range paths {
		await(s.Stdout, "finished transferring file")
	}
	for _, path := range paths {
		if digest(t, path) != digest(t, filepath.Join(s.dir, filepath.Base(path))) {
			t.Errorf("%s arrived with another digest", path)
		}
	}
}

// parity: B19
func TestExistingFileIsKept(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	path := input(t, "twice", 1000)
	s.send(t, path)
	code, stdout, stderr := runClient(t, s.addr, input(t, "twice", 2000))
	if code != 1 || strings.Contains(stdout, "DONE") || !strings.Contains(stderr, s.addr) {
		t.Errorf("the client ended with %d: %s%s", code, stdout, stderr)
	}
	await(s.Stderr, "file exists")
	if digest(t, path) != digest(t, filepath.Join(s.dir, "twice")) {
		t.Error("the file has changed")
	}
	s.send(t, input(t, "another", 1000))
}

// parity: B16 B17
func TestMisuse(t *testing.T) {
	usage := fmt.Sprintf("usage: %s <server-address> <file-name>\n", filepath.Join(programs, "client"))
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, usage},
		{[]string{"localhost"}, usage},
		{[]string{"localhost", "a", "b"}, usage},
		{[]string{"localhost", filepath.Join("no", "such", "file")}, "unable to open input file \"file\"\n"},
	} {
		code, stdout, stderr := runClient(t, tt.args...)
		if code != 1 || stdout != "" || stderr != tt.want {
			t.Errorf("%q: exit code %d, %q, %q, want %q", tt.args, code, stdout, stderr, tt.want)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	s.interrupt(t)
	code, stdout, stderr := runClient(t, s.addr, input(t, "f", 1))
	if code != 1 || stdout != "" || !strings.Contains(stderr, s.addr) || !strings.Contains(stderr, "refused") {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}
