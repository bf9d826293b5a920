//go:build linux

package interop

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goProgram builds a program of this module.
func goProgram(t *testing.T, directory string) string {
	t.Helper()
	path := filepath.Join(buildDir, strings.ReplaceAll(directory, "/", "-"))
	if out, err := exec.Command("go", "build", "-o", path, "cinnabar/"+directory).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", directory, err, out)
	}
	return path
}

// TestExampleServer has the tutorial's client in C call the example's server, four times.
func TestExampleServer(t *testing.T) {
	sumClient.executable(t) // before anything else is built
	p := tutorialProcess{startFile(t, goProgram(t, "examples/sum/server"), "ofi+tcp://127.0.0.1")}
	_, addr, _ := strings.Cut(p.expectLog("Server running at address "), "address ")
	runClients(t, addr, loads[0])
	p.checkEnd(addr)
}

// TestExampleClient has the example's client call the tutorial's server in C, four times.
func TestExampleClient(t *testing.T) {
	server, addr := startTutorialServer(t)
	client := goProgram(t, "examples/sum/client")
	for range tutorialCalls / clientCalls {
		p := startFile(t, client, addr)
		if err := p.Wait(); err != nil {
			t.Fatalf("the client ends with %v\n%s", err, p.log())
		}
		want := strings.Repeat(fmt.Sprintf("[debug] Got response: %d\n", loads[0].sum), clientCalls)
		if got := p.Stderr.String(); got != want {
			t.Errorf("the client prints %q; want %q", got, want)
		}
	}
	server.checkEnd(addr)
}
