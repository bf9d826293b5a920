//go:build linux

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/testproc"
)

// program is a C program of directory c, or a C++ one of directory cpp.
type program struct {
	name     string
	cpp      bool
	sources  []string
	packages []string // for pkg-config
	flags    []string

	once sync.Once
	path string // of the executable, empty if a package is missing
	err  error  // why it cannot be had
}

var (
	hgPeer    = &program{name: "hg_peer", sources: []string{"peer.c", "hg_peer.c", "hg_peer_serve.c", "hg_peer_call.c"}, packages: []string{"mercury"}}
	margoPeer = &program{name: "margo_peer", sources: []string{"peer.c", "margo_peer.c", "margo_peer_serve.c", "margo_peer_call.c"}, packages: []string{"margo"}}
	sumServer = &program{name: "margo_sum_server", sources: []string{"margo_sum_server.c"}, packages: []string{"margo"}}
	sumClient = &program{name: "margo_sum_client", sources: []string{"margo_sum_client.c"}, packages: []string{"margo"}}
	hashIDs   = &program{name: "hashids", sources: []string{"hashids.c"}, packages: []string{"margo", "mercury"}, flags: []string{"-DWITH_MARGO"}}
	procs     = &program{name: "procs", sources: []string{"procs.c"}, packages: []string{"mercury"}}
)

// buildDir holds the executables while the tests run.
var buildDir string

// programsEnv names a folder that keeps the compiled programs. The tests use a program that the folder has without compiling it, so they need
// neither a compiler nor the headers of the libraries for it.
const programsEnv = "CINNABAR_INTEROP_PROGRAMS"

func TestMain(m *testing.M) {
	testproc.Main(map[string]func(args []string) error{victimRole: victim})
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cinnabar-interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if buildDir = os.Getenv(programsEnv); buildDir == "" {
		buildDir = dir
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// executable compiles the program once and returns its path. It skips the test where a library or the compiler is
// missing; a program that does not compile against the installed libraries fails it. A test whose sub-tests all need the program
// begins with a call of it, because a test that has skipped every part must not count as passed.
func (p *program) executable(t *testing.T) string {
	t.Helper()
	p.once.Do(p.build)
	switch {
	case p.err != nil && p.path == "":
		t.Skipf("%s needs %s: %v", p.name, strings.Join(p.packages, " and "), p.err)
	case p.err != nil:
		t.Fatal(p.err)
	}
	return p.path
}

// build sets path once everything that the compiler needs is there.
func (p *program) build() {
	if _, err := os.Stat(filepath.Join(buildDir, p.name)); err == nil {
		p.path = filepath.Join(buildDir, p.name)
		return
	}
	compiler, dir := "cc", "c"
	if p.cpp {
		compiler, dir = "c++", "cpp"
	}
	cc, err := exec.LookPath(compiler)
	if err != nil {
		p.err = err
		return
	}
	flags, err := pkgConfig(p.packages...)
	if err != nil {
		p.err = err
		return
	}
	p.path = filepath.Join(buildDir, p.name)
	args := slices.Concat([]string{"-O2", "-Wall", "-Wextra", "-o", p.path}, p.flags, p.sources, flags)
	cmd := exec.Command(cc, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		p.err = fmt.Errorf("%s %s: %w\n%s", cc, strings.Join(args, " "), err, out)
	}
}

// pkgConfig returns the compiler's flags for packages, and for each directory of libraries one that has the
// executable find them there.
func pkgConfig(packages ...string) ([]string, error) {
	cmd := exec.Command("pkg-config", append([]string{"--cflags", "--libs", "--print-errors"}, packages...)...)
	var diagnosis strings.Builder
	cmd.Stderr = &diagnosis
	out, err := cmd.Output()
	if err != nil {
		why, _, _ := strings.Cut(diagnosis.String(), "\n")
		return nil, fmt.Errorf("pkg-config: %w: %s", err, why)
	}
	flags := strings.Fields(string(out))
	for _, f := range flags {
		if dir, ok := strings.CutPrefix(f, "-L"); ok {
			flags = append(flags, "-Wl,-rpath,"+dir)
		}
	}
	return flags, nil
}
