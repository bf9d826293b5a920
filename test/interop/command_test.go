//go:build linux

package interop

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cinnabar/regmem"
)

// commandLine is a run of cinnabar call, which has the place of a client in a scene.
type commandLine struct {
	name   string // of the RPC
	args   string // behind the name, separated by spaces; FILE stands for a file with the bytes of memory
	memory []byte
	want   string // on standard output
	oneWay bool
}

// commandScenes are calls from the shell at servers in C and C++, with bulk memory: the sum of Margo's tutorial, do_rdma of Thallium's, and the service of
// Mercury's own tests. The memories are larger than a message, so that the servers read them.
var commandScenes = []scene{
	{name: "call_margo_sum", peer: sumServer, serve: func(t *testing.T) (*process, string) {
		p, addr := startTutorialServer(t)
		return p.process, addr
	}, shell: &commandLine{
		name: "sum", args: "--in int32,hg_bulk_t --args [5000] --bulk-in FILE --out int32", memory: regmem.Bytes(repeated(5000, int32(3))), want: "15000\n",
	}},
	{name: "call_thallium_do_rdma", peer: rdmaServer, serve: func(t *testing.T) (*process, string) {
		p := startRDMAServer(t)
		return p.process, p.addr
	}, shell: &commandLine{
		name: "do_rdma", args: "--flavor thallium --in bulk --bulk-in FILE --one-way --grace 2s", memory: bytes.Repeat([]byte("Matthieu"), 1<<11), oneWay: true,
	}},
	{name: "call_mercury_test", installed: "hg_test_server", options: onLoopback, shell: &commandLine{
		name: "hg_test_bulk_write", args: "--flavor mercury --in int32,uint64,uint64,uint64,bulk --args [1,65536,0,0] --bulk-in FILE --out uint64", memory: counting(65536), want: "65536\n",
	}},
}

func init() { scenes = append(scenes, commandScenes...) }

// repeated returns n values v.
func repeated[T any](n int, v T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = v
	}
	return all
}

// counting returns n bytes, each its place modulo 256, which Mercury's test wants.
func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// cinnabarCommand is the path of the command, which is built once.
var cinnabarCommand = struct {
	once sync.Once
	path string
}{}

// run calls the server at addr.
func (c *commandLine) run(t *testing.T, addr string) {
	t.Helper()
	cinnabarCommand.once.Do(func() { cinnabarCommand.path = goProgram(t, "cmd/cinnabar") })
	file := filepath.Join(t.TempDir(), "memory")
	must(t, os.WriteFile(file, c.memory, 0o600))
	args := append([]string{"call", addr, c.name}, strings.Fields(strings.ReplaceAll(c.args, "FILE", file))...)
	p := startFile(t, cinnabarCommand.path, args...)
	if err := p.Wait(); err != nil || p.Stderr.String() != "" {
		t.Errorf("cinnabar %q ends with %v\n%s", args, err, p.log())
	}
	if got := p.Stdout.String(); got != c.want {
		t.Errorf("cinnabar %q prints %q, want %q", args, got, c.want)
	}
}
