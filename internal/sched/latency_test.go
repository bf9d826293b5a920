package sched

import (
	"testing"
	"time"
)

// runs has p measure n runs that take d.
func runs(p *LatencyEstimator, n int, d time.Duration) {
	for range n {
		if p.Measure() {
			p.Record(d, 0)
		}
	}
}

func TestPace(t *testing.T) {
	var p LatencyEstimator
	if p.Quick(BesideRunning) {
		t.Fatal("quick before the first run")
	}
	runs(&p, trusted-1, quickRun/2)
	runs(&p, 1, quickRun)
	runs(&p, trusted-1, quickRun/2)
	if p.Quick(BesideRunning) {
		t.Error("quick although too few runs in a row were")
	}
	runs(&p, 1, quickRun/2)
	if !p.Quick(BesideRunning) {
		t.Error("not quick after quick runs")
	}
	runs(&p, sampleOne, slowRun/2)
	if !p.Quick(BesideRunning) {
		t.Error("not quick after a run that was a little longer")
	}
	for range 3 {
		runs(&p, sampleOne, 2*slowRun)
		if !p.Quick(BesideRunning) {
			t.Error("not quick after a single slow run, which may be a stall")
		}
		runs(&p, 1, slowRun)
	}
	runs(&p, sampleOne, 2*slowRun)
	runs(&p, 1, 2*slowRun)
	if p.Quick(BesideRunning) {
		t.Error("quick after two slow runs in a row")
	}
	runs(&p, mistrust+trusted-2, 0)
	if p.Quick(BesideRunning) {
		t.Error("quick again too soon")
	}
	runs(&p, 2, 0)
	if !p.Quick(BesideRunning) {
		t.Error("never quick again")
	}
}

func TestPaceWaited(t *testing.T) {
	var p LatencyEstimator
	runs(&p, trusted, 0)
	p.Waited()
	if p.Quick(BesideRunning) {
		t.Error("quick although the handler waits")
	}
}

// Handlers that are longer than quick ones are run by the reader only while none else is under way.
func TestPaceBrisk(t *testing.T) {
	var p LatencyEstimator
	runs(&p, trusted-1, briskRun/2)
	if p.Quick(BesideWaiting) {
		t.Error("trusted too soon")
	}
	runs(&p, 1, briskRun/2)
	if !p.Quick(BesideWaiting) || p.Quick(BesideRunning) {
		t.Errorf("quick alone: %v, beside others: %v", p.Quick(BesideWaiting), p.Quick(BesideRunning))
	}
	runs(&p, sampleOne, sluggishRun/2) // learned for quick ones, each measured
	if !p.Quick(BesideWaiting) {
		t.Error("not brisk after runs that were a little longer")
	}
	runs(&p, 2, 2*sluggishRun)
	if p.Quick(BesideWaiting) {
		t.Error("brisk after two slow runs in a row")
	}
	p = LatencyEstimator{}
	runs(&p, trusted, 0)
	p.Waited()
	if p.Quick(BesideWaiting) {
		t.Error("brisk although the handler waits")
	}
}

// TestPaceMover checks that the time of transfers with the caller does not count, but other waits and other work do.
func TestPaceMover(t *testing.T) {
	move := func(p *LatencyEstimator, n int, d, moving time.Duration) {
		for range n {
			measure := p.Measure()
			p.Moved()
			if measure {
				p.Record(d, moving)
			}
		}
	}
	var p LatencyEstimator
	move(&p, trusted-1, time.Second+briskRun/2, time.Second)
	if p.Quick(Alone) {
		t.Error("trusted too soon")
	}
	move(&p, 1, time.Second+briskRun/2, time.Second)
	if !p.Quick(Alone) || p.Quick(BesideWaiting) {
		t.Errorf("quick alone: %v, beside others that wait: %v", p.Quick(Alone), p.Quick(BesideWaiting))
	}
	move(&p, sampleOne+1, time.Second+2*sluggishRun, time.Second)
	if p.Quick(Alone) {
		t.Error("quick after two runs in a row with much work beside the transfer")
	}
	move(&p, doubt+trusted, time.Second, time.Second)
	if !p.Quick(Alone) {
		t.Error("not quick again soon")
	}
	p = LatencyEstimator{}
	move(&p, trusted, 0, 0)
	p.Waited()
	if p.Quick(Alone) {
		t.Error("quick although the handler waits for something else")
	}
}
