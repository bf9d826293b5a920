package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"
)

// TestMain is the command where the tests start it as one.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		os.Exit(run(nil))
	}
	os.Exit(m.Run())
}

// TestCrowd runs the whole command with few clients. It asserts no times and no memory, because the machine may be busy.
func TestCrowd(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // a process of the race detector sleeps for a second at its end otherwise
	var out bytes.Buffer
	s := setting{idle: 40, active: 10, hosts: 4, duration: 50 * time.Millisecond, quiet: 10 * time.Millisecond, profile: t.TempDir() + "/heap", out: &out}
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^idle connections: 40 from 4 addresses`, `(?m)^memory of each: -?[0-9.]+ KiB of resident set`, `(?m)^processor time of the server, all idle: [0-9.]+ %`,
		`(?m)^active clients: 10, for 50ms: [1-9][0-9]* calls/s`, `(?m)^second call of each idle client: 40 succeed$`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("no line %s in\n%s", want, out.String())
		}
	}
	if i, err := os.Stat(s.profile); err != nil || i.Size() == 0 {
		t.Errorf("the profile: %v", err)
	}
}

// TestFit lowers the numbers of clients to the descriptors of the server, and names none below 0.
func TestFit(t *testing.T) {
	for _, tt := range []struct{ files, idle, active, wantIdle, wantActive int }{
		{1 << 16, 10_000, 1000, 10_000, 1000},
		{20_000, 10_000, 1000, 8973, 897},
		{20_000, 10_000, 0, 9870, 0},
	} {
		s := setting{idle: tt.idle, active: tt.active}
		if s.fit(tt.files); s.idle != tt.wantIdle || s.active != tt.wantActive {
			t.Errorf("%d files: %d idle and %d active, want %d and %d", tt.files, s.idle, s.active, tt.wantIdle, tt.wantActive)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, s := range []setting{{}, {idle: 1, active: -1}, {idle: 1, hosts: 251}, {idle: 1, hosts: 1}} {
		if s.check() == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}

func TestResidentSet(t *testing.T) {
	if n, err := residentSet("Name:\tx\nVmRSS:\t    1536 kB\n"); err != nil || n != 1536<<10 {
		t.Errorf("%d, %v", n, err)
	}
	for _, text := range []string{"", "VmRSS:\tx kB\n"} {
		if _, err := residentSet(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

// TestSummary shows the client that starves, which the percentiles of all calls do not.
func TestSummary(t *testing.T) {
	got := summary([][]time.Duration{{10 * time.Microsecond, 30 * time.Microsecond, 20 * time.Microsecond}, {time.Millisecond}, nil}, time.Second)
	if want := (calls{Clients: 3, PerSecond: 4, P50: 20, P99: 30, Least: 0, Most: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := summary(nil, time.Second), (calls{}); got != want {
		t.Errorf("%+v of no client, want %+v", got, want)
	}
}
