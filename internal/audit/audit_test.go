package audit

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/hostquota"
)

func host(n int) hostquota.Host {
	return hostquota.HostOf(netip.AddrFrom4([4]byte{127, 0, byte(n >> 8), byte(n)}))
}

func TestRecord(t *testing.T) {
	var out bytes.Buffer
	trail := NewWithLimiter(slog.New(slog.NewTextHandler(&out, nil)), NewLimiter())
	trail.Record(Denied, "wrong key", host(1), slog.Int("key", 7))
	trail.Record(Accepted, "new peer", host(2))
	trail.Count(Denied, "wrong key")
	for _, want := range []string{
		`level=WARN msg="memory access refused" host=127.0.0.1 cause="wrong key" key=7`,
		`level=INFO msg="connection accepted" host=127.0.0.2 cause="new peer"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
	want := []Count{{Accepted, "new peer", 1}, {Denied, "wrong key", 2}}
	if got := trail.Counts(); !slices.Equal(got, want) {
		t.Errorf("counts are %v, want %v", got, want)
	}
}

func TestBoundsCoverAllTrails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, limiter := slog.New(slog.NewTextHandler(&out, nil)), NewLimiter()
		trails := []*Trail{NewWithLimiter(log, limiter), NewWithLimiter(log, limiter)}
		for i := range 1000 {
			trails[i%2].Record(Refused, "no room", host(1))
		}
		if n := strings.Count(out.String(), "\n"); n != LinesPerHost {
			t.Errorf("%d lines about one host, want %d", n, LinesPerHost)
		}
		for i := range 1000 {
			trails[0].Record(Refused, "no room", host(i+2))
		}
		if n := strings.Count(out.String(), "\n"); n != LinesInAll {
			t.Errorf("%d lines about all hosts, want %d", n, LinesInAll)
		}
		time.Sleep(Window) //nolint:forbidigo // simulated time
		out.Reset()
		trails[1].Record(Refused, "no room", host(1))
		if want := fmt.Sprintf("suppressed=%d", 1000-LinesPerHost); !strings.Contains(out.String(), want) {
			t.Errorf("the next line lacks %s: %s", want, out.String())
		}
		if got := trails[0].Counts()[0].N + trails[1].Counts()[0].N; got != 2001 {
			t.Errorf("%d events are counted, want 2001", got)
		}
	})
}

func TestLimiterForgets(t *testing.T) {
	l := NewLimiter()
	for i := range 3 * maxHosts {
		l.Allow(host(i))
	}
	l.mu.Lock()
	n := len(l.hosts)
	l.mu.Unlock()
	if n > maxHosts {
		t.Errorf("%d hosts are remembered, want at most %d", n, maxHosts)
	}
}

func TestWithoutLogger(t *testing.T) {
	trail := New(nil)
	trail.Record(Broken, "nonsense", host(1))
	if got := trail.Counts(); len(got) != 1 {
		t.Errorf("counts are %v, want one", got)
	}
}
