package querylimit

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
)

func host(n int) hostquota.Host {
	return hostquota.HostOf(netip.AddrFrom4([4]byte{127, byte(n >> 16), byte(n >> 8), byte(n)}))
}

// ask begins and ends n descriptions at a moment, and returns the number that the limiter has permitted.
func ask(t *testing.T, l *Limiter, h hostquota.Host, n int, now time.Time) (open int) {
	t.Helper()
	for range n {
		end, err := l.begin(h, now)
		if err == nil {
			open++
			end()
		} else if !errors.Is(err, ErrTooOften) || !Refused(err) {
			t.Fatal(err)
		}
	}
	return open
}

func TestRates(t *testing.T) {
	l, now := New(), time.Now()
	if n := ask(t, l, host(1), 100, now); n != HostRate*Seconds {
		t.Errorf("%d of 100 at once, want %d", n, HostRate*Seconds)
	}
	if n := ask(t, l, host(2), 100, now); n != HostRate*Seconds {
		t.Errorf("%d of 100 of another host, want %d", n, HostRate*Seconds)
	}
	open := 0
	for i := range 100 {
		open += ask(t, l, host(3+i), 1, now)
	}
	if want := (TotalRate - 2*HostRate) * Seconds; open != want {
		t.Errorf("%d of 100 hosts, want %d", open, want)
	}
	now = now.Add(time.Second)
	if n := ask(t, l, host(1), 100, now); n != HostRate {
		t.Errorf("%d of 100 after a second, want %d", n, HostRate)
	}
	if n := ask(t, l, host(1), 1, now.Add(-time.Hour)); n != 0 {
		t.Error("a clock that goes back gives more")
	}
}

func TestTogether(t *testing.T) {
	l := New()
	var end func()
	for range Together {
		var err error
		if end, err = l.Begin(host(1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Begin(host(2)); !errors.Is(err, ErrBusy) || !Refused(err) {
		t.Errorf("%v, want ErrBusy", err)
	}
	end()
	if _, err := l.Begin(host(2)); err != nil {
		t.Error(err)
	}
}

func TestForgetsHosts(t *testing.T) {
	l, now := New(), time.Now()
	for i := range 3 * maxHosts {
		now = now.Add(time.Second / TotalRate)
		ask(t, l, host(i), 1, now)
	}
	for i := range 3 * maxHosts { // all at once
		ask(t, l, host(i), 1, now)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hosts) > maxHosts {
		t.Errorf("%d hosts are remembered, at most %d", len(l.hosts), maxHosts)
	}
}
