//go:build unix

package xfer

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

var kills = flag.Int("kills", defaultKills, "how many processes TestKill kills")

const (
	killChunk = minChunk
	killSize  = 5*killChunk + 1
	// killWait is the timeout of the side that lives; nothing may take much longer.
	killWait = 3 * time.Second
)

// init turns the process into a victim before any test can run.
func init() { testproc.Main(map[string]func([]string) error{"victim": victim}) }

// victim is one side of a transfer that signals itself at a step. Its arguments are the side, the protocol, the step, the
// signal, and for a sender the address and the name, for a receiver the directory.
func victim(args []string) error {
	if strings.HasPrefix(args[0], "big-") {
		return bigVictim(args)
	}
	p, _ := strconv.Atoi(args[1])
	at, _ := strconv.Atoi(args[2])
	sig, _ := strconv.Atoi(args[3])
	step := 0
	trace := func() Tracer {
		return func(Step) {
			if step++; step == at {
				_ = syscall.Kill(os.Getpid(), syscall.Signal(sig)) // nothing more happens here
				select {}
			}
		}
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	if args[0] == "sender" {
		s := Sender{Protocol: Protocol(p), Chunk: killChunk, Window: 2, Trace: trace}
		_, err = s.Send(context.Background(), dev, netip.MustParseAddrPort(args[4]), sourceOf(args[5], noise(killSize)))
		return err
	}
	l, err := verbs.Listen(dev, loopback)
	if err != nil {
		return err
	}
	dir, err := OpenDir(context.Background(), args[4], DirOptions{})
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	r := Receiver{Open: dir.Open, Trace: trace}
	_, err = r.ServeOne(context.Background(), l)
	return err
}

// spawn starts a victim. A receiver prints its address.
func spawn(t *testing.T, args ...string) *testproc.Process {
	t.Helper()
	return testproc.Start(t, testproc.Command{Role: "victim", Args: args})
}

// certainSteps counts the steps that every transfer of the victims' file has, on the
// side of the sender and the receiver: not those that depend on how many
// buffers one credit gives back, or that may come after the end.
func certainSteps(t *testing.T, p Protocol) (n [2]int) {
	t.Helper()
	h := exchange(t, Sender{Protocol: p, Chunk: killChunk, Window: 2}, Receiver{}, noise(killSize), media{})
	for _, s := range h.steps {
		side := 0
		if s.server {
			side = 1
		}
		switch {
		case s.Op == OpSent, s.Op == OpSend && s.Message == "CREDIT":
		case s.Op == OpReceive && s.Message == "CREDIT":
			n[side]-- // its receive is posted again
		default:
			n[side]++
		}
	}
	return n
}

// wantKilled checks that a victim died at its step, unless it may have had fewer.
func wantKilled(t *testing.T, victim *testproc.Process, at, certain int) {
	t.Helper()
	if !victim.WasKilled() && at <= certain { // or it is through with its steps
		t.Errorf("the victim ended with %v, not by its own hand at step %d of at least %d", victim.Wait(), at, certain)
	}
}

// Either side is killed at every step of the protocol in turn. The other one
// notices and does not hang, no half file stands under the name, and a
// server that lives serves the next client.
func TestKill(t *testing.T) {
	certain := map[Protocol][2]int{Basic: certainSteps(t, Basic), Fast: certainSteps(t, Fast)}
	t.Logf("steps of each side: %v", certain)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Timeout: killWait}, DirOptions{Overwrite: true})
	for i := range *kills {
		p, at := Protocol(1+i%2), 1+i/4
		if i/2%2 == 0 {
			t.Run(fmt.Sprintf("%v sender at %d", p, at), func(t *testing.T) { killSender(t, srv, p, at, certain[p][0]) })
		} else {
			t.Run(fmt.Sprintf("%v receiver at %d", p, at), func(t *testing.T) {
				victim, _ := killReceiver(t, p, at, syscall.SIGKILL, killWait)
				wantKilled(t, victim, at, certain[p][1])
			})
		}
	}
	srv.stop() // what the killed have begun is over, and has left nothing
	for _, name := range srv.names() {
		if name != "next" {
			whole(t, filepath.Join(srv.path, name), true)
		}
	}
}

func killSender(t *testing.T, srv *server, p Protocol, at, certain int) {
	ctx := testContext(t)
	name := fmt.Sprintf("file-%v-%d", p, at)
	victim := spawn(t, "sender", strconv.Itoa(int(p)), strconv.Itoa(at), strconv.Itoa(int(syscall.SIGKILL)), srv.addr.String(), name)
	start := time.Now()
	wantKilled(t, victim, at, certain)
	if _, err := (&Sender{Protocol: p}).Send(ctx, device(t, iwarp.Config{}), srv.addr, sourceOf("next", nil)); err != nil {
		t.Errorf("the next transfer: %v", err)
	}
	if took := time.Since(start); took > 5*killWait {
		t.Errorf("it took %v", took)
	}
	whole(t, filepath.Join(srv.path, name), false)
}

// whole checks that the file is complete or, unless it is required, not there.
func whole(t *testing.T, path string, required bool) {
	t.Helper()
	got, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if required {
			t.Error("success, but no file")
		}
	case err != nil:
		t.Error(err)
	case !bytes.Equal(got, noise(killSize)):
		t.Errorf("a half file of %d bytes", len(got))
	}
}

// killReceiver sends to a victim, which it returns: it has had its signal, or has
// nothing more to do.
func killReceiver(t *testing.T, p Protocol, at int, sig syscall.Signal, timeout time.Duration) (*testproc.Process, error) {
	t.Helper()
	ctx := testContext(t)
	dir := t.TempDir()
	victim := spawn(t, "receiver", strconv.Itoa(int(p)), strconv.Itoa(at), strconv.Itoa(int(sig)), dir)
	addr := netip.MustParseAddrPort(victim.Stdout.Line())
	s := Sender{Protocol: p, Chunk: killChunk, Window: 2, Timeout: timeout}
	start := time.Now()
	_, serr := s.Send(ctx, device(t, iwarp.Config{}), addr, sourceOf("f", noise(killSize)))
	if took := time.Since(start); took > 5*killWait {
		t.Errorf("it took %v", took)
	}
	whole(t, filepath.Join(dir, "f"), serr == nil)
	return victim, serr
}

// A receiver that is stopped, not killed, keeps its connection, and is given up
// after the timeout.
// parity: B46
func TestStoppedReceiver(t *testing.T) {
	for p, steps := range map[Protocol][]int{Basic: {3, 12}, Fast: {8, 16}} { // after the connection, in the middle
		for _, at := range steps {
			t.Run(fmt.Sprintf("%v at %d", p, at), func(t *testing.T) {
				t.Parallel()
				victim, err := killReceiver(t, p, at, syscall.SIGSTOP, time.Second)
				victim.Kill() // it has only stopped
				wantCode(t, err, CodeTimeout, false, "nothing has moved for 1s")
			})
		}
	}
}
