package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/testproc"
)

// role is a process of this program.
const role = "enginepeer"

func TestMain(m *testing.M) {
	testproc.Main(map[string]func(args []string) error{
		role: func(args []string) error {
			return errors.Join(program(context.Background(), args, os.Stdout), goleak.Find())
		},
	})
	goleak.VerifyTestMain(m)
}

// loopback is the address at which all processes of a test listen.
const loopback = "ofi+verbs://127.0.0.1"

// start starts a process with options and waits until it can be called.
func start(t *testing.T, address string, args ...string) (p *testproc.Process, addr string) {
	t.Helper()
	p = testproc.Start(t, testproc.Command{Role: role, Args: append([]string{"-address", address}, args...)})
	return p, strings.TrimPrefix(p.Stdout.Take("^ready .*$")[0], "ready ")
}

// good waits for the end of a client, and checks that its exit status is 0.
func good(t *testing.T, p *testproc.Process) {
	t.Helper()
	if err := p.Wait(); err != nil || !strings.HasSuffix(p.Stdout.String(), "\nok\n") {
		t.Errorf("the client ends with %v and prints\n%s", err, p.Stdout)
	}
}

// TestConversation has two processes check calls and transfers on the software device.
func TestConversation(t *testing.T) {
	_, addr := start(t, loopback)
	client, _ := start(t, loopback, "-to", addr)
	good(t, client)
}

// TestCrossing connects from both sides at once.
func TestCrossing(t *testing.T) {
	_, addr := start(t, loopback)
	client, _ := start(t, loopback, "-to", addr, "-cross")
	good(t, client)
}

// TestServerDies kills the server in each phase, and starts another one at its address.
func TestServerDies(t *testing.T) {
	for _, phase := range phases {
		t.Run(phase, func(t *testing.T) {
			server, addr := start(t, loopback)
			client, _ := start(t, loopback, "-to", addr, "-kill", phase)
			client.Stdout.Take("^survived$")
			if err := server.Wait(); err == nil || !server.WasKilled() {
				t.Errorf("the server has not killed itself: %v", err)
			}
			start(t, addr)
			good(t, client)
		})
	}
}

// TestClientDies kills a client in each phase of one server, which goes on serving.
func TestClientDies(t *testing.T) {
	_, addr := start(t, loopback)
	for _, phase := range phases {
		t.Run(phase, func(t *testing.T) {
			victim, _ := start(t, loopback, "-to", addr, "-die", phase)
			if err := victim.Wait(); err == nil || !victim.WasKilled() {
				t.Errorf("the client has not killed itself: %v", err)
			}
			client, _ := start(t, loopback, "-to", addr, "-ask", phase)
			good(t, client)
		})
	}
}

// TestOptions refuses command lines that make no sense.
func TestOptions(t *testing.T) {
	for _, args := range []string{"", "-address a -kill handler", "-address a -to b -kill dinner", "-address a -to b -kill pull -die pull", "-address a -cross"} {
		if o, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%q is accepted as %+v", args, o)
		}
	}
}
