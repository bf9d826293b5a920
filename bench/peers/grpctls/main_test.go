package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain runs the tests, or a server of one.
func TestMain(m *testing.M) {
	if os.Getenv(pathVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestCases measures each case for a moment.
func TestCases(t *testing.T) {
	s := setting{rounds: 2, duration: 20 * time.Millisecond}
	var out strings.Builder
	if err := s.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		for name, f := range s.results[c.name] {
			if f.rate <= 0 || !c.stream && (f.p50 <= 0 || f.p99 < f.p50) {
				t.Errorf("%s over %s: %+v", c.name, name, f)
			}
		}
		if want := 2 + map[bool]int{true: 1}[c.plain] + map[bool]int{true: 1}[c.large]; len(s.results[c.name]) != want {
			t.Errorf("%s has %d paths, want %d", c.name, len(s.results[c.name]), want)
		}
	}
	if n := strings.Count(out.String(), "met ") + strings.Count(out.String(), "missed "); n != 7 {
		t.Errorf("%d goals, want 7: %s", n, &out)
	}
	t.Log("\n" + out.String())
}

// TestArguments refuses settings that measure nothing, and unknown paths.
func TestArguments(t *testing.T) {
	var out strings.Builder
	if err := (&setting{duration: time.Second}).run(t.Context(), &out); err == nil {
		t.Error("no rounds were accepted")
	}
	if err := (&setting{rounds: 1, duration: time.Second, path: "grpc", bars: true}).run(t.Context(), &out); err == nil {
		t.Error("goals of some paths were accepted")
	}
	dir := t.TempDir()
	if err := makeCertificate(dir); err != nil {
		t.Fatal(err)
	}
	if err := serve("nonsense", dir, strings.NewReader(""), &out); err == nil {
		t.Error("an unknown path was accepted")
	}
}
