package iwarp

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
)

// TestPaceOfFailures has one host fail handshakes without end: after the free ones they come at failureRate, another host
// begins at once, and both rates are halved while both fail. A host whose handshakes succeed never waits.
func TestPaceOfFailures(t *testing.T) {
	bad, other := hostquota.HostOf(netip.MustParseAddr("192.0.2.1")), hostquota.HostOf(netip.MustParseAddr("192.0.2.2"))
	now := time.Now()
	var p pace
	begin := func(h hostquota.Host) time.Duration {
		t.Helper()
		wait, _, ok := p.begin(h, now, time.Hour)
		if !ok {
			t.Fatal("refused")
		}
		return wait.Round(time.Microsecond)
	}
	const each = time.Second / failureRate
	for range freeFailures {
		if wait := begin(bad); wait != 0 {
			t.Fatalf("a free one waits %v", wait)
		}
	}
	for i := range 100 {
		if got, want := begin(bad), time.Duration(i+1)*each; got != want {
			t.Fatalf("number %d behind the free ones waits %v, want %v", i, got, want)
		}
	}
	if got := begin(other); got != 0 {
		t.Errorf("another host waits %v", got)
	}
	if got, want := begin(bad), 2*101*each; got != want {
		t.Errorf("beside another host with failures it waits %v, want %v", got, want)
	}
	if _, _, ok := p.begin(bad, now, 2*101*each); ok {
		t.Error("a wait beyond the limit is granted")
	}
	now = now.Add(time.Minute)
	begin(other)
	p.succeeded(other)
	if len(p.hosts) != 1 {
		t.Errorf("%d hosts are remembered when the failures are long past, want the one that has just begun", len(p.hosts))
	}
	for range 10 * freeFailures {
		if wait := begin(other); wait != 0 {
			t.Fatalf("a host whose handshakes succeed waits %v", wait)
		}
		p.succeeded(other)
	}
}

// TestPaceIsBounded has more hosts fail than are remembered.
func TestPaceIsBounded(t *testing.T) {
	var p pace
	now := time.Now()
	for i := range uint32(2 * maxPaced) {
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], i)
		if wait, _, ok := p.begin(hostquota.HostOf(netip.AddrFrom4(ip)), now, 0); wait != 0 || !ok {
			t.Fatalf("the first handshake of host %d waits %v", i, wait)
		}
	}
	if len(p.hosts) != maxPaced {
		t.Errorf("%d hosts are remembered, want %d", len(p.hosts), maxPaced)
	}
}

// TestSuccessEndsWaits has many hosts fail, so that little is left for a host that begins more handshakes at once than it has free
// ones. As these succeed the others begin, in order, and not when others' failures let them.
func TestSuccessEndsWaits(t *testing.T) {
	var p pace
	now := time.Now()
	for i := range byte(250) {
		if _, _, ok := p.begin(hostquota.HostOf(netip.AddrFrom4([4]byte{192, 0, 2, i})), now, 0); !ok {
			t.Fatal("refused")
		}
	}
	host := hostquota.HostOf(netip.MustParseAddr("198.51.100.1"))
	const more = 5
	var waits []chan struct{}
	for range freeFailures + more {
		wait, early, ok := p.begin(host, now, time.Hour)
		if !ok || (wait > 0) != (early != nil) {
			t.Fatalf("a wait of %v, which can end early: %t; granted: %t", wait, early != nil, ok)
		}
		if early != nil {
			waits = append(waits, early)
		}
	}
	if len(waits) != more {
		t.Fatalf("%d wait, want %d", len(waits), more)
	}
	over := func(i int) bool {
		select {
		case <-waits[i]:
			return true
		default:
			return false
		}
	}
	p.waited(host, waits[1]) // its time is over
	for i, next := range []int{0, 2, 3, 4} {
		if over(next) {
			t.Errorf("number %d does not wait after %d successes", next, i)
		}
		p.succeeded(host)
		if !over(next) {
			t.Errorf("number %d waits after %d successes", next, i+1)
		}
	}
	p.succeeded(host) // for which none waits
	if over(1) || len(p.hosts[host].waiting) != 0 {
		t.Error("the wait that was over has ended once more, or is kept")
	}
}

// TestWaitEndsEarly has a newcomer wait for an hour, and another handshake of its host succeed.
func TestWaitEndsEarly(t *testing.T) {
	dev, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := dev.Driver().(*device)
	p := &pending{host: hostquota.HostOf(netip.MustParseAddr("192.0.2.1"))}
	p.account = d.book.Account(p.host)
	if err := p.account.Take(hostquota.Queued, 1); err != nil {
		t.Fatal(err)
	}
	early := make(chan struct{})
	close(early)
	if err := d.beginLater(t.Context(), p, time.Hour, early); err != nil {
		t.Error(err)
	}
	if !d.handshakes.end(p) {
		t.Error("the handshake is not counted")
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// TestBrakeRecovers has a host make thousands of refused accesses at once, on connections that it had before: its
// connections are spaced out, and no longer than a host's that made just enough of them.
func TestBrakeRecovers(t *testing.T) {
	h := hostquota.HostOf(netip.MustParseAddr("192.0.2.1"))
	b := brake{limit: defaultDenied}
	now := time.Now()
	for range 10000 {
		b.deny(h, now)
	}
	if _, ok := b.turn(h, now); !ok {
		t.Error("the first connection is refused")
	}
	if _, ok := b.turn(h, now); ok {
		t.Error("the second connection has its turn at once")
	}
	now = now.Add(halfTime)
	for range 100 {
		if wait, ok := b.turn(h, now); wait != 0 || !ok {
			t.Fatalf("after %v a connection waits for %v, refused: %v", halfTime, wait, !ok)
		}
	}
}
