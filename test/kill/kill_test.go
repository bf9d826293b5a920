//go:build unix

package kill

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The transfer: three chunks and a part of a fourth. The timeout is what package xfer
// is told; a peer whose process dies is noticed at once, so it is long enough for
// a machine with other things to do.
const (
	chunk    = 4096
	size     = 3*chunk + 1000
	timeout  = 5 * time.Second
	runsEnv  = "CINNABAR_KILL_RUNS"
	fewRuns  = 12
	fileName = "data"
)

// scene is a variant with one side to be killed.
type scene struct {
	variant
	side  string // "send" or "recv"
	steps int    // of that side in a transfer that succeeds
}

// TestKill kills either side at its steps, all of them where enough runs are asked
// for, and a spread of them otherwise.
// parity: B41 B44
func TestKill(t *testing.T) {
	scenes := rehearse(t)
	all := 0
	for _, s := range scenes {
		all += s.steps
	}
	want := runs(t)
	full := want > fewRuns
	if full {
		want = max(want, all)
	}
	t.Logf("%d steps in all, %d runs", all, want)
	source := makeSource(t)
	killed := 0
	for i, s := range scenes {
		share := want / len(scenes)
		if full {
			share = (want*s.steps + all - 1) / all // at least s.steps
		} else if i < want%len(scenes) {
			share++
		}
		t.Run(s.name+"/"+s.side, func(t *testing.T) { killed += s.killAll(t, source, spread(s.steps, share)) })
	}
	t.Logf("%d processes were killed", killed)
	if full && killed < runs(t) { // those of the fast protocol vary a little in their steps
		t.Errorf("%d processes were killed, want %d at least", killed, runs(t))
	}
}

// runs is how many were asked for.
func runs(t *testing.T) int {
	t.Helper()
	text := os.Getenv(runsEnv)
	if text == "" {
		return fewRuns
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q; it counts runs", runsEnv, text)
	}
	return n
}

// spread returns n steps out of 1 to last, evenly; all of them, some more than once, if n is
// larger.
func spread(last, n int) []int {
	var s []int
	for i := range n {
		if n >= last {
			s = append(s, i%last+1)
		} else {
			s = append(s, 1+i*(last-1)/max(n-1, 1))
		}
	}
	return s
}

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		last, n int
		want    string
	}{{5, 2, "[1 5]"}, {5, 5, "[1 2 3 4 5]"}, {3, 5, "[1 2 3 1 2]"}, {9, 1, "[1]"}, {9, 3, "[1 5 9]"}} {
		if got := fmt.Sprint(spread(tt.last, tt.n)); got != tt.want {
			t.Errorf("%d of %d: %s, want %s", tt.n, tt.last, got, tt.want)
		}
	}
}

// rehearse counts the steps of both sides in each variant.
func rehearse(t *testing.T) []scene {
	t.Helper()
	var scenes []scene
	source := makeSource(t)
	for _, v := range variants {
		dir := t.TempDir()
		r, addr := startRecv(t, v, dir)
		s := startSend(t, v, addr, source)
		sends := s.said(wordSteps)
		if err := s.Wait(); err != nil {
			t.Fatalf("%s: the sender failed: %v: %s", v.name, err, s.Stderr)
		}
		if got := r.expect(wordDone); !strings.HasSuffix(got, " ok") {
			t.Fatalf("%s: the receiver failed: %s", v.name, got)
		}
		r.CloseInput() // asks it to end
		recvs := r.said(wordSteps)
		r.stop()
		checkFile(t, dir, fileName, source, true)
		scenes = append(scenes, scene{v, "send", number(t, sends)}, scene{v, "recv", number(t, recvs)})
	}
	return scenes
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil || n < 10 {
		t.Fatalf("a process counted %q steps", text)
	}
	return n
}

// makeSource writes the file to send.
func makeSource(t *testing.T) string {
	t.Helper()
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	path := filepath.Join(t.TempDir(), fileName)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkFile fails if what stands under name is not the whole source. It may be missing
// unless it must be there.
func checkFile(t *testing.T, dir, name, source string, must bool) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, name))
	if os.IsNotExist(err) && !must {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("half a file: %s has %d bytes, the source %d; or they differ", name, len(got), len(want))
	}
}

// under makes the source available under another name.
func under(t *testing.T, source, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.Link(source, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// killAll kills one side at each of the steps and returns how often it came to that.
func (s scene) killAll(t *testing.T, source string, at []int) (killed int) {
	run := s.killRecv
	if s.side == "send" {
		dir := t.TempDir()
		r, addr := startRecv(t, s.variant, dir)
		defer func() {
			r.stop()
			checkNoRest(t, dir)
		}()
		run = func(t *testing.T, source string, n, step int) bool {
			return s.killSend(t, r, addr, dir, source, n, step)
		}
	}
	for n, step := range at {
		if run(t, source, n, step) {
			killed++
		}
		if t.Failed() {
			t.Fatalf("it was killed at step %d", step)
		}
	}
	return killed
}

// killSend kills a sender. The receiver, which goes on, must come to an end with it, and then
// serve the next.
func (s scene) killSend(t *testing.T, r *process, addr, dir, source string, n, step int) bool {
	t.Helper()
	victim, next := fmt.Sprintf("victim-%d", n), fmt.Sprintf("next-%d", n)
	p := startSend(t, s.variant, addr, under(t, source, victim), at(step))
	local, where := "", ""
	for line, ok := p.Stdout.NextLine(); ok; line, ok = p.Stdout.NextLine() {
		if rest, ok := strings.CutPrefix(line, wordConnected+" "); ok {
			local = rest
		}
		if rest, ok := strings.CutPrefix(line, wordStep+" "); ok {
			where = rest
		}
	}
	killed := p.WasKilled()
	t.Logf("step %d: %s", step, where)
	if local != "" {
		how := r.expect(wordDone, local) // within the timeout
		checkFile(t, dir, victim, source, how == "ok")
	}
	checkFile(t, dir, victim, source, false)
	after := startSend(t, s.variant, addr, under(t, source, next))
	if err := after.Wait(); err != nil {
		t.Errorf("the next sender failed: %v: %s", err, after.Stderr)
	}
	checkFile(t, dir, next, source, true)
	return killed
}

// killRecv kills a receiver. The sender must come to an end, and another receiver
// in the same directory must take the file.
func (s scene) killRecv(t *testing.T, source string, n, step int) bool {
	t.Helper()
	dir := t.TempDir()
	r, addr := startRecv(t, s.variant, dir, at(step))
	p := startSend(t, s.variant, addr, source)
	sent := p.Wait()
	r.CloseInput() // in case it lives
	where := r.said(wordStep)
	killed := r.WasKilled()
	t.Logf("step %d: %s; the sender says: %s", step, where, p.Stderr)
	checkFile(t, dir, fileName, source, sent == nil)
	if killed && sent != nil && p.Stderr.String() == "" {
		t.Error("the sender failed without a word")
	}
	r, addr = startRecv(t, s.variant, dir)
	next := under(t, source, "next")
	if _, err := os.Stat(filepath.Join(dir, fileName)); os.IsNotExist(err) {
		next = source // the same name again: what is left must not be in the way
	}
	after := startSend(t, s.variant, addr, next)
	if err := after.Wait(); err != nil {
		t.Errorf("the next receiver did not take the file: %v: %s", err, after.Stderr)
	}
	r.stop()
	checkFile(t, dir, filepath.Base(next), source, true)
	checkFile(t, dir, fileName, source, false)
	return killed
}

// checkNoRest fails if a receiver that lived left something incomplete.
func checkNoRest(t *testing.T, dir string) {
	t.Helper()
	rest, err := filepath.Glob(filepath.Join(dir, ".cinnabar-*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(rest) > 0 {
		t.Errorf("left behind: %q", rest)
	}
}
