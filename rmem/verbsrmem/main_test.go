package verbsrmem

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/testproc"
	"cinnabar/rmem"
)

func TestMain(m *testing.M) {
	testproc.Main(roles)
	goleak.VerifyTestMain(m)
}

// roles are the parts of other processes, which speak by lines.
var roles = map[string]func(args []string) error{}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closing(t testing.TB, c interface{ Close() error }) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func alloc(t testing.TB, c *rmem.Client, size int64) *rmem.Region {
	t.Helper()
	r, err := c.Alloc(devicetest.Context(t), size)
	must(t, err)
	return r
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	var e *rmem.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// eventually waits for what nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not yet", what)
		}
	}
}

// spawn starts a process in a role. It is killed with the test, if not before.
func spawn(t *testing.T, role string, args ...string) *testproc.Process {
	t.Helper()
	return testproc.Start(t, testproc.Command{Role: role, Args: args})
}

// check ends a process whose part has failed.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
