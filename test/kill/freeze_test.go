//go:build unix

package kill

import (
	"strings"
	"testing"
	"time"
)

// freezeTimeout is the timeout that both sides have where one is stopped.
const freezeTimeout = time.Second

// TestFreeze stops either side for good at some of its steps. Its connection stays, so
// only the timeout tells the other side.
// parity: B46
func TestFreeze(t *testing.T) {
	each := 1
	if runs(t) > fewRuns {
		each = 6
	}
	source := makeSource(t)
	for _, s := range rehearse(t) {
		for _, step := range spread(s.steps-2, each+2)[1 : each+1] { // neither the first nor the last
			t.Run(s.name+"/"+s.side, func(t *testing.T) {
				t.Parallel()
				if s.side == "send" {
					s.freezeSend(t, source, step)
				} else {
					s.freezeRecv(t, source, step)
				}
			})
		}
	}
}

// frozen are the settings of a process that stops at a step.
func frozen(step int) []string {
	return []string{at(step), stopEnv + "=1", timeoutEnv + "=" + freezeTimeout.String()}
}

// freezeSend stops a sender. The receiver must give it up, and serve the next meanwhile.
func (s scene) freezeSend(t *testing.T, source string, step int) {
	dir := t.TempDir()
	r, addr := startRecv(t, s.variant, dir, timeoutEnv+"="+freezeTimeout.String())
	p := startSend(t, s.variant, addr, under(t, source, "victim"), frozen(step)...)
	local := p.expect(wordConnected) // a later step than the middle's
	t.Logf("step %d: %s", step, p.expect(wordStep))
	next := startSend(t, s.variant, addr, under(t, source, "next"))
	if err := next.Wait(); err != nil {
		t.Errorf("the next sender failed: %v: %s", err, next.Stderr)
	}
	for done := false; !done; {
		line := r.expect(wordDone)
		var how string
		if how, done = strings.CutPrefix(line, local+" "); done && how != "ok" && !strings.Contains(how, "no progress") {
			t.Errorf("the receiver says of a sender that has stopped: %s", how)
		} else if done {
			t.Logf("the receiver says: %s", how)
		}
	}
	r.stop()
	checkFile(t, dir, "next", source, true)
	checkFile(t, dir, "victim", source, false)
	checkNoRest(t, dir)
}

// freezeRecv stops a receiver. The sender must give it up. When it goes on, the
// receiver must serve the next.
func (s scene) freezeRecv(t *testing.T, source string, step int) {
	dir := t.TempDir()
	r, addr := startRecv(t, s.variant, dir, frozen(step)...)
	p := startSend(t, s.variant, addr, under(t, source, "victim"), timeoutEnv+"="+freezeTimeout.String())
	t.Logf("step %d: %s", step, r.expect(wordStep))
	if err := p.Wait(); err != nil && !strings.Contains(p.Stderr.String(), "no progress") {
		t.Errorf("the sender says of a receiver that has stopped: %s", p.Stderr)
	}
	r.Resume()
	next := startSend(t, s.variant, addr, under(t, source, "next"))
	if err := next.Wait(); err != nil {
		t.Errorf("the next sender failed: %v: %s", err, next.Stderr)
	}
	r.stop()
	checkFile(t, dir, "next", source, true)
	checkFile(t, dir, "victim", source, false)
	checkNoRest(t, dir)
}
