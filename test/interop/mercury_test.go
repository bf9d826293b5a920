//go:build linux

package interop

import (
	"fmt"
	"testing"
)

// step is a command for a peer program and the words that its result must have.
type step struct{ command, want string }

// mercurySteps are what an hg_peer calls at a server, which may be C or Go.
var mercurySteps = []step{
	{"sum a=40 b=2", "ret=0 value=42"},
	{"sum a=2147483647 b=1", "ret=0 value=-2147483648"},
	{"sum a=1 b=2 count=500 inflight=1", "ret=0 ok=500"},
	{"sum a=1 b=2 count=2000 inflight=64", "ret=0 ok=2000"},
	{"void", "ret=0"},
	{"unknown", "ret=2"},
	{"null", "ret=11"},
	{"echo variant=0", "ret=0 equal=1"},
	{"echo variant=1", "ret=0 equal=1"},
	{"echo variant=2", "ret=0 equal=1"},
	{"notify seq=1 text=bob", "ret=0"},
	{"notify seq=2 size=1048576", "ret=0"},
	{"blob size=0 reply=0", "ret=0 sent-ok=1 reply=0 reply-ok=1"},
	{"blob size=4044 reply=4071", "ret=0 sent-ok=1 reply=4071 reply-ok=1"},
	{"blob size=4045 reply=4072", "ret=0 sent-ok=1 reply=4072 reply-ok=1"},
	{"blob size=1048576 reply=0", "ret=0 sent-ok=1"},
	{"blob size=0 reply=1048576", "ret=0 reply=1048576 reply-ok=1"},
	{"blob size=1048576 reply=1048576", "ret=0 sent-ok=1 reply=1048576 reply-ok=1"},
	{"hold cancel=1", "ret=21"},
	{"release", "ret=0 count=1"},
	{"sum a=1 b=1", "ret=0 value=2"},
	{"callback a=20 b=22", "ret=0 value=42"},
}

// moveSteps are transfers, at a server that may be C or Go. mode 3 is memory that may be read and written.
var moveSteps = []step{
	{"pull total=1", "ret=0 moved=0 count=1 ok=1"},
	{"pull total=16", "ret=0 moved=0 count=16 ok=1"},
	{"pull total=16 mode=3", "ret=0 moved=0 count=16 ok=1"},
	{"pull total=60 segments=3", "ret=0 moved=0 count=60 ok=1"},
	{"pull total=20000", "ret=0 moved=0 count=20000 ok=1"},
	{"pull total=1048576", "ret=0 moved=0 count=1048576 ok=1"},
	{"pull total=1048577 segments=1024 local-segments=7", "ret=0 moved=0 count=1048577 ok=1"},
	{"pull total=100 segments=4 offset=30 size=45 local-offset=13 local-size=80", "ret=0 moved=0 count=45 ok=1"},
	{"pull total=33554433", "ret=0 moved=0 count=33554433 ok=1"},
	{"push total=1", "ret=0 moved=0 count=1 ok=1"},
	{"push total=48", "ret=0 moved=0 count=48 ok=1"},
	{"push total=16 mode=3", "ret=0 moved=0 count=16 ok=1"},
	{"push total=60 segments=3", "ret=0 moved=0 count=60 ok=1"},
	{"push total=1048577 segments=7 local-segments=1024", "ret=0 moved=0 count=1048577 ok=1"},
	{"push total=100 segments=4 offset=30 size=45 local-offset=13 local-size=80", "ret=0 moved=0 count=45 ok=1"},
	{"push total=33554433", "ret=0 moved=0 count=33554433 ok=1"},
	{"pull total=16 mode=2", "ret=0 moved=1"},
	{"push total=16 mode=1", "ret=0 moved=1"},
}

// boundSteps are transfers with handles that name their owner, which only plain Mercury has.
var boundSteps = []step{
	{"pull total=16 bind=1 origin=bound", "ret=0 moved=0 count=16 ok=1"},
	{"pull total=60000 segments=3 bind=1 origin=bound", "ret=0 moved=0 count=60000 ok=1"},
	{"push total=60000 segments=3 bind=1 origin=bound", "ret=0 moved=0 count=60000 ok=1"},
}

// setting is a way in which a C side can be set up.
type setting struct {
	name    string
	options []string
	levels  bool // only for builds with checksums
}

var settings = []setting{
	{name: "default"},
	{name: "no-eager", options: []string{"--no-eager"}},
	{name: "no-multi-recv", options: []string{"--no-multi-recv"}},
	{name: "headers", options: []string{"--checksum", "headers"}, levels: true},
	{name: "payload", options: []string{"--checksum", "payload"}, levels: true},
}

// eachSetting runs f with the options of each setting that the installed Mercury has.
func eachSetting(t *testing.T, f func(t *testing.T, options []string)) {
	checksums := startPeer(t, hgPeer).checksums
	for _, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			if s.levels && !checksums {
				t.Skip("the installed Mercury was built without checksums")
			}
			f(t, s.options)
		})
	}
}

func runSteps(q *peer, steps ...[]step) {
	q.t.Helper()
	for _, list := range steps {
		for _, s := range list {
			q.check(s.command, s.want)
		}
	}
}

// TestMercuryCToC shows that the peer programs and their steps are right: both sides are C.
func TestMercuryCToC(t *testing.T) {
	eachSetting(t, func(t *testing.T, options []string) {
		server, client := startPeer(t, hgPeer, options...), startPeer(t, hgPeer, options...)
		client.aim(server.addr)
		runSteps(client, mercurySteps, moveSteps, boundSteps)
		server.expect("event notify seq=1")
		server.expect("event notify seq=2")
		client.stop()
		server.stop()
	})
}

// TestMercuryClientC has a C client call a Go server.
// parity(peer): H43 H47 H51 H70 H80
func TestMercuryClientC(t *testing.T) {
	eachSetting(t, func(t *testing.T, options []string) {
		s := listen(t, mercury, nil).serveMercury(t)
		client := startPeer(t, hgPeer, options...)
		client.aim(s.Addr())
		runSteps(client, mercurySteps, moveSteps)
		s.takeNotes(t)
		client.stop()
	})
}

// TestMercuryBoundClientC has a Go server transfer by the address in a C client's handle.
// parity(peer): H84
func TestMercuryBoundClientC(t *testing.T) {
	s := listen(t, mercury, nil)
	client := startPeer(t, hgPeer)
	client.aim(s.Addr())
	runSteps(client, boundSteps)
	client.stop()
}

// TestMercuryRelay has a handle travel over a process to a third one, in each combination of sides.
// parity(peer): H84
func TestMercuryRelay(t *testing.T) {
	hgPeer.executable(t)
	for _, goRelay := range []bool{false, true} {
		for _, goMover := range []bool{false, true} {
			t.Run(fmt.Sprintf("goRelay=%v,goMover=%v", goRelay, goMover), func(t *testing.T) {
				owner := startPeer(t, hgPeer)
				relay, endRelay := anyServer(t, goRelay)
				mover, endMover := anyServer(t, goMover)
				owner.aim(relay)
				for _, kind := range []string{"pull", "push"} {
					for _, shape := range []string{"total=16", "total=60000 segments=3"} {
						owner.check(fmt.Sprintf("%s %s via=%s origin=%s", kind, shape, mover, owner.addr), "ret=0 moved=0 ok=1")
						owner.check(fmt.Sprintf("%s %s via=%s origin=bound bind=1", kind, shape, mover), "ret=0 moved=0 ok=1")
					}
				}
				owner.stop()
				endRelay()
				endMover()
			})
		}
	}
}

// anyServer starts a server in Go or C and returns its address.
func anyServer(t *testing.T, inGo bool) (addr string, end func()) {
	t.Helper()
	if inGo {
		return listen(t, mercury, nil).serveMercury(t).Addr(), func() {}
	}
	q := startPeer(t, hgPeer)
	return q.addr, q.stop
}

// TestEagerOnTheWire shows by the counters whether memory that a C client exposes travels in its handle.
// parity(peer): H79
func TestEagerOnTheWire(t *testing.T) {
	hgPeer.executable(t)
	for _, c := range []struct {
		option, command      string
		reads, writes, eager bool
	}{
		{"", "pull total=16", false, false, true},
		{"--no-eager", "pull total=16", true, false, false},
		{"", "pull total=1048576", true, false, false},
		{"--no-eager", "pull total=1048576 segments=1024", true, false, false},
		{"", "push total=16", false, true, false},
		{"", "push total=16 mode=3", false, true, false},
		{"--no-eager", "push total=1048576 segments=1024", true, true, false}, // the handle is too long for the request, and is read
	} {
		t.Run(c.option+" "+c.command, func(t *testing.T) {
			s := listen(t, mercury, nil)
			options := []string{}
			if c.option != "" {
				options = append(options, c.option)
			}
			client := startPeer(t, hgPeer, options...)
			client.aim(s.Addr())
			client.check(c.command, "ret=0 moved=0 ok=1")
			client.stop()
			got := s.Stats()
			if got.EagerCopies > 0 != c.eager || got.Reads > 0 != c.reads || got.Writes > 0 != c.writes {
				t.Errorf("%d eager copies, %d reads, %d writes; want eager %v, reads %v, writes %v",
					got.EagerCopies, got.Reads, got.Writes, c.eager, c.reads, c.writes)
			}
		})
	}
}
