//go:build unix

package kill

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/testproc"
)

// patience bounds what a test waits for beyond the timeouts of package xfer: starting
// a process on a machine that has other things to do.
const patience = 20 * time.Second

// process is a sender or receiver that runs.
type process struct {
	*testproc.Process
	t *testing.T
}

// start starts a process in a role. What is in env comes on top of the test's environment.
func start(t *testing.T, role string, env ...string) *process {
	t.Helper()
	return &process{testproc.Start(t, testproc.Command{
		Role:  role,
		Env:   append([]string{timeoutEnv + "=" + timeout.String()}, env...),
		Limit: timeout + patience,
	}), t}
}

// startSend starts a sender of the file at path.
func startSend(t *testing.T, v variant, addr, path string, more ...string) *process {
	t.Helper()
	return start(t, roleSend, append(more, variantEnv+"="+v.name, peerEnv+"="+addr, pathEnv+"="+path)...)
}

// startRecv starts a receiver into dir and returns its address.
func startRecv(t *testing.T, v variant, dir string, more ...string) (p *process, addr string) {
	t.Helper()
	p = start(t, roleRecv, append(more, variantEnv+"="+v.name, pathEnv+"="+dir)...)
	return p, p.expect(wordAddr)
}

// expect waits for the line that begins with the words, and returns the rest.
func (p *process) expect(words ...string) string {
	p.t.Helper()
	return p.Stdout.Expect("^" + regexp.QuoteMeta(strings.Join(words, " ")) + " (.*)$")[1]
}

// said returns the rest of the last line that begins with word among those until the end of the process, or "".
func (p *process) said(word string) (rest string) {
	p.t.Helper()
	for line, ok := p.Stdout.NextLine(); ok; line, ok = p.Stdout.NextLine() {
		if r, ok := strings.CutPrefix(line, word+" "); ok {
			rest = r
		}
	}
	return rest
}

// stop ends a receiver in order.
func (p *process) stop() {
	p.t.Helper()
	p.CloseInput()
	if err := p.Wait(); err != nil {
		p.t.Errorf("the receiver ended with %v: %s", err, p.Stderr)
	}
}

// at makes a process end at step n.
func at(n int) string { return fmt.Sprintf("%s=%d", stepEnv, n) }
