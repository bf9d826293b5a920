package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
)

// TestMain is the command where the tests start it as one.
func TestMain(m *testing.M) {
	if text := os.Getenv(orderVariable); text != "" {
		os.Exit(runOrder(text, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// TestInnocentCallsSucceed runs one short attack against each service. It asserts no times, because the machine may be busy.
func TestInnocentCallsSucceed(t *testing.T) {
	cpus, err := twoProcessors()
	if err != nil {
		t.Log(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GORACE", "atexit_sleep_ms=0") // a process of the race detector sleeps for a second at its end otherwise
	for service, name := range map[string]string{rpcTCP: "unknown-input", rpcVerbs: "no-credits", rpcSM: "full-eventfd", files: "places", memory: "immediate"} {
		t.Run(service, func(t *testing.T) {
			a := attackOf(service, name)
			if a == nil {
				t.Fatalf("no attack %s", name)
			}
			s := setting{duration: 100 * time.Millisecond, rounds: 2, callLimit: time.Minute, log: t.Output(), program: program}
			m, err := s.measure(t.Context(), a, cpus)
			if err != nil {
				t.Fatal(err)
			}
			if m.crash != nil {
				t.Errorf("the server: %v", m.crash)
			}
			if m.rate == 0 {
				t.Errorf("the attackers did nothing: %s", m.attackError)
			}
			rows := m.rows()
			if len(rows) == 0 {
				t.Error("no innocent calls")
			}
			for _, r := range rows {
				if r.now.Calls == 0 || r.now.Failures > 0 || r.base.Failures > 0 {
					t.Errorf("%s: %d calls beside spinning processes, %d failed: %s; %d beside attackers, %d failed: %s", r.kind,
						r.base.Calls, r.base.Failures, r.base.Error, r.now.Calls, r.now.Failures, r.now.Error)
				}
			}
			t.Logf("%s: %.0f operations a second, peak %+v, after %+v", name, m.rate, m.peak, m.after)
		})
	}
}

// TestAttacksAreComplete checks that each attack has a service, a name of its own, and something to run.
func TestAttacksAreComplete(t *testing.T) {
	for i := range attacks {
		a := &attacks[i]
		if services[a.service] == nil || a.name == "" || a.about == "" || a.run == nil {
			t.Errorf("attack %d is not complete: %q, %q", i, a.service, a.name)
		}
		if attackOf(a.service, a.name) != a {
			t.Errorf("%s, %s: another attack has the name", a.service, a.name)
		}
	}
	var b strings.Builder
	printList(&b, choose("na+sm", "full"))
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "full-eventfd") {
		t.Errorf("the list of one attack is %q", got)
	}
	if len(choose("", "no such attack")) != 0 || len(choose("", "")) != len(attacks) {
		t.Error("choose does not choose by name")
	}
}

// TestBars checks which measurements miss a bar, and the table.
func TestBars(t *testing.T) {
	good := func() *measurement {
		return &measurement{
			attack: &attacks[0], rate: 1,
			base: report{Steady: &tally{Calls: 10, Times: []time.Duration{time.Millisecond}}},
			now:  report{Steady: &tally{Calls: 10, Times: []time.Duration{9 * time.Millisecond}}},
		}
	}
	for want, change := range map[string]func(*measurement){
		"":                  func(*measurement) {},
		"10.0 times 1ms":    func(m *measurement) { m.now.Steady.Times[0] = 10 * time.Millisecond },
		"1 of 10 steady":    func(m *measurement) { m.now.Steady.Failures = 1 },
		"beside spinning":   func(m *measurement) { m.base.Steady.Failures = 1 },
		"did nothing":       func(m *measurement) { m.rate = 0 },
		"the server: panic": func(m *measurement) { m.crash = errors.New("panic") },
		"took 7s":           func(m *measurement) { m.end.LongestClose = 7 * time.Second },
	} {
		m := good()
		change(m)
		got := m.missed()
		if want == "" && len(got) != 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("missed %q, want one with %q", got, want)
		}
	}
	var b strings.Builder
	printTable(&b, good().rows())
	if got := b.String(); !strings.Contains(got, " 9.0 ") || strings.Count(got, "\n") != 2 {
		t.Errorf("the table is\n%s", got)
	}
}

// TestRounds checks that the calls of several rounds are measured as one.
func TestRounds(t *testing.T) {
	var r report
	for round := range 3 {
		a := report{Steady: &tally{}}
		for i := range 100 {
			a.Steady.Calls++
			a.Steady.Times = append(a.Steady.Times, time.Duration(1000*round+i))
		}
		a.Steady.Failures = round
		r.add(a)
	}
	if s := r.Steady; s.Calls != 300 || s.Failures != 3 || s.percentile(50) != 1050 || s.percentile(99) != 2097 || s.percentile(100) != 2099 {
		t.Errorf("%d calls, %d failures, percentiles %v, %v, %v", s.Calls, s.Failures, s.percentile(50), s.percentile(99), s.percentile(100))
	}
	if r.Newcomer != nil {
		t.Error("a report has newcomers although no round has")
	}
	if p := new(tally).percentile(99); p != 0 {
		t.Errorf("a percentile of no calls is %v", p)
	}
}

// TestTapSeesSegments checks that a tap finds the segments of a stream, however it is cut.
func TestTapSeesSegments(t *testing.T) {
	stream, err := mpa.AppendFrame(nil, mpa.Frame{Revision: mpa.Revision2, Enhanced: true, PrivateData: flowHello()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		h := ddp.Header{Last: true, Version: ddp.Version, ULP: rdmap.Control(rdmap.OpSend), MSN: uint32(i + 1)}
		stream = appendFPDU(stream, append(ddp.AppendHeader(nil, h), make([]byte, i)...))
	}
	for cut := 1; cut < 40; cut++ {
		var seen []int
		w := &tap{see: func(h ddp.Header, payload []byte) {
			if int(h.MSN) != len(seen)+1 {
				t.Errorf("cut %d: segment %d has number %d", cut, len(seen), h.MSN)
			}
			seen = append(seen, len(payload))
		}}
		for rest := stream; len(rest) > 0; {
			n := min(cut, len(rest))
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if len(seen) != 5 || seen[4] != 4 {
			t.Errorf("cut %d: payloads of %v bytes", cut, seen)
		}
	}
}
