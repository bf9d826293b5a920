//go:build linux

package interop

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
)

// named is a test that is not about a network.
type named struct {
	name string
	run  func(*testing.T)
}

// TestSharedMemory runs over na+sm, with programs in C that wait in the kernel, what other tests run over TCP.
// parity(peer): H126
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
		{"LateAccessOfC", TestLateAccessOfC},
		{"MercuryRelay", TestMercuryRelay},
		{"EmptySegmentsAtC", TestEmptySegmentsAtC},
		{"ManySegmentsAtC", TestManySegmentsAtC},
		{"ManySegmentsOfC", TestManySegmentsOfC},
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
// region and socket of na+sm on the machine (HG_Cleanup). The tests of perfrpc, below cmd/cinnabar, that start one lock the same file.
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
// parity(peer): H15 H126
func TestSharedMemoryBusy(t *testing.T) {
	hgPeer.executable(t)
	overSharedMemory(t, true, []named{
		{"MercuryServerC", TestMercuryServerC},
		{"MercuryOpenOnly", TestMercuryOpenOnly},
		{"LateAccessOfC", TestLateAccessOfC},
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
// parity(peer): H126
func TestSharedMemoryMixed(t *testing.T) {
	hgPeer.executable(t)
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

// TestSharedMemoryCutOff has another program cut off a Go server's region: it is made anew before a client in C touches it,
// one that waits in the kernel, which goes on and does not notice; and one that comes later finds all it needs.
// parity(peer): H07
func TestSharedMemoryCutOff(t *testing.T) {
	hgPeer.executable(t)
	overSharedMemory(t, false, []named{{"MercuryClientC", func(t *testing.T) {
		s := listen(t, mercury, nil).serveMercury(t)
		client := startPeer(t, hgPeer)
		client.aim(s.Addr())
		path := filepath.Join("/dev/shm", "na_sm-"+strings.TrimPrefix(s.Addr(), "na+sm://"))
		for range 3 {
			client.check("sum a=1 b=2 count=100 inflight=8", "ret=0 ok=100")
			must(t, os.Truncate(path, 0))
			whole(t, path)
		}
		runSteps(client, moveSteps)
		late := startPeer(t, hgPeer)
		late.aim(s.Addr())
		late.check("sum a=1 b=2 count=100 inflight=8", "ret=0 ok=100")
		client.stop()
		late.stop()
	}}})
}

// whole waits until a region begins with its owner and has all free copy buffers again: that is what comes last but one.
func whole(t *testing.T, path string) {
	t.Helper()
	const bufferMap = 0x40108
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	ctx := limited(t, patience)
	for {
		b, err := os.ReadFile(path)
		must(t, err)
		if len(b) > bufferMap+8 && binary.LittleEndian.Uint64(b[bufferMap:]) == ^uint64(0) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the region is not made anew")
		}
	}
}

// large skips tests that move gigabytes.
func large(t *testing.T) {
	t.Helper()
	if os.Getenv("CINNABAR_LARGE") == "" {
		t.Skip("takes 10 GiB of memory; set CINNABAR_LARGE=1 to run it")
	}
}

// TestSharedMemoryLarge has a Go server move 5 GiB from and to a client in C, which takes several system calls.
// parity(peer): H126
func TestSharedMemoryLarge(t *testing.T) {
	large(t)
	overSharedMemory(t, false, []named{{"MercuryClientC", func(t *testing.T) {
		s := listen(t, mercury, nil).serveMercury(t)
		client := startPeer(t, hgPeer, "--timeout", strconv.Itoa(int((10 * patience).Milliseconds())))
		client.aim(s.Addr())
		for _, command := range []string{"pull total=5368709120", "push total=5368709120 segments=1024"} {
			client.start(command)
			if got := client.longResult(command); !got.has("ret=0 moved=0 count=5368709120 ok=1") {
				t.Errorf("the client says %q to %q", got, command)
			}
		}
		client.stop()
	}}})
}

// longResult is result for a command that takes longer than others.
func (q *peer) longResult(command string) line {
	q.t.Helper()
	q.SetLimit(10 * patience)
	defer q.SetLimit(patience)
	return q.result(command)
}

// maxC is how much a program in C moves at once: it makes one system call, and the kernel moves no more in one (MAX_RW_COUNT).
const maxC = 0x7FFFF000

// TestSharedMemoryLimitOfC has a server in C move from and to a Go client as much as it can, and a byte more, which it refuses.
// parity(peer): H126
func TestSharedMemoryLimitOfC(t *testing.T) {
	large(t)
	overSharedMemory(t, false, []named{{"MercuryServerC", func(t *testing.T) {
		q := startPeer(t, hgPeer)
		c := dial(t, mercury, q.addr, nil)
		memory := make([]byte, maxC+1)
		b, err := c.Expose(cinnabar.ReadWrite, memory)
		must(t, err)
		for _, move := range []*cinnabar.RPC[moveIn, moveOut]{c.rpc.pull, c.rpc.push} {
			for _, tt := range []struct {
				size uint64
				want codes.Code
			}{{maxC, 0}, {maxC + 1, codes.MsgSize}} {
				in := moveIn{Size: tt.size, LocalSize: tt.size, LocalSegments: 1, Seed: 1, Bulk: b.Handle()}
				out, err := move.Call(limited(t, 10*patience), c.to, in)
				if err != nil || codes.Code(out.Ret) != tt.want || tt.want == 0 && out.Count != tt.size {
					t.Errorf("%s of %d bytes: %v, %+v; want %v", move.Name(), tt.size, err, out, tt.want)
				}
			}
		}
		must(t, b.Close())
		closeEngine(t, c.Engine)
		q.stop()
	}}})
}
