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
		wait, ok := p.begin(h, now, time.Hour)
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
	if _, ok := p.begin(bad, now, 2*101*each); ok {
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
		if wait, ok := p.begin(hostquota.HostOf(netip.AddrFrom4(ip)), now, 0); wait != 0 || !ok {
			t.Fatalf("the first handshake of host %d waits %v", i, wait)
		}
	}
	if len(p.hosts) != maxPaced {
		t.Errorf("%d hosts are remembered, want %d", len(p.hosts), maxPaced)
	}
}
