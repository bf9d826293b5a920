//go:build linux

package interop

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// named is a test that is not about a network.
type named struct {
	name string
	run  func(*testing.T)
}

// TestSharedMemory runs over na+sm, with programs in C that wait in the kernel, what other tests run over TCP.
func TestSharedMemory(t *testing.T) {
	overSharedMemory(t, false, []named{
		{"TutorialCToC", TestTutorialCToC},
		{"TutorialClientC", TestTutorialClientC},
		{"TutorialServerC", TestTutorialServerC},
		{"MercuryCToC", TestMercuryCToC},
		{"MercuryClientC", TestMercuryClientC},
		{"MercuryServerC", TestMercuryServerC},
		{"MercuryGoToGo", TestMercuryGoToGo},
		{"MercuryBoundClientC", TestMercuryBoundClientC},
		{"MercuryBoundServerC", TestMercuryBoundServerC},
		{"MercuryOpenOnly", TestMercuryOpenOnly},
		{"MercuryRelay", TestMercuryRelay},
		{"MargoClientC", TestMargoClientC},
		{"MargoServerC", TestMargoServerC},
		{"MargoGoToGo", TestMargoGoToGo},
		{"MargoOpenOnly", TestMargoOpenOnly},
		{"MargoClientOnlyC", TestMargoClientOnlyC},
		{"MargoParent", TestMargoParent},
		{"MargoShutdown", TestMargoShutdown},
	})
}

// overSharedMemory runs tests while no process of Mercury's own tests starts: those remove the files of all others.
func overSharedMemory(t *testing.T, poll bool, tests []named) {
	t.Helper()
	keepFiles(t)
	for _, n := range tests {
		over(t, n.name, sharedMemory, poll, n.run)
	}
}

// keepFiles has Mercury's servers for measurements wait until the test is over: when they start, they remove every
// region and socket of na+sm on the machine (HG_Cleanup). The tests of cmd/cinnabar that start one lock the same file.
func keepFiles(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "cinnabar-test-na_sm.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // which unlocks it
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
}

// TestSharedMemoryBusy is the same with programs in C that poll. What such a client sends at nearly the same time is
// found at the same time, so that the order of handlers is nobody's.
func TestSharedMemoryBusy(t *testing.T) {
	overSharedMemory(t, true, []named{
		{"MercuryServerC", TestMercuryServerC},
		{"MercuryOpenOnly", TestMercuryOpenOnly},
		{"MercuryBoundClientC", TestMercuryBoundClientC},
		{"MercuryClientC", func(t *testing.T) {
			s := listen(t, mercury, nil).serveMercury(t)
			client := startPeer(t, hgPeer)
			client.aim(s.Addr())
			ordered := func(s step) bool {
				return strings.HasPrefix(s.command, "hold") || strings.HasPrefix(s.command, "release")
			}
			runSteps(client, slices.DeleteFunc(slices.Clone(mercurySteps), ordered), moveSteps)
			if a, b := <-s.notes, <-s.notes; a.Seq+b.Seq != 3 || len(a.Text)+len(b.Text) != 3+1<<20 {
				t.Errorf("notifications %d and %d have %d and %d bytes", a.Seq, b.Seq, len(a.Text), len(b.Text))
			}
			client.stop()
		}},
	})
}

// TestSharedMemoryMixed has a Go server serve a client in C that waits and one that polls at the same time.
func TestSharedMemoryMixed(t *testing.T) {
	overSharedMemory(t, false, []named{{"MercuryClientC", func(t *testing.T) {
		s := listen(t, mercury, nil).serveMercury(t)
		waits, polls := startPeer(t, hgPeer), startPeer(t, hgPeer, "--busy")
		for _, q := range []*peer{waits, polls} {
			q.aim(s.Addr())
			q.start("sum a=1 b=2 count=2000 inflight=16")
		}
		for _, q := range []*peer{waits, polls} {
			if got := q.result("sum"); !got.has("ret=0 value=3 count=2000 ok=2000") {
				t.Errorf("%s says %q", q.name, got)
			}
			runSteps(q, moveSteps)
			q.stop()
		}
	}}})
}

// TestSharedMemoryLarge has a Go server move more from and to a client in C than one system call does, which C cannot
// start itself.
func TestSharedMemoryLarge(t *testing.T) {
	if os.Getenv("CINNABAR_LARGE") == "" {
		t.Skip("takes 5 GiB of memory; set CINNABAR_LARGE=1 to run it")
	}
	overSharedMemory(t, false, []named{{"MercuryClientC", func(t *testing.T) {
		s := listen(t, mercury, nil).serveMercury(t)
		client := startPeer(t, hgPeer)
		client.aim(s.Addr())
		runSteps(client, []step{
			{"pull total=2415919104", "ret=0 moved=0 count=2415919104 ok=1"},
			{"push total=2415919104 segments=1024", "ret=0 moved=0 count=2415919104 ok=1"},
		})
		client.stop()
	}}})
}
