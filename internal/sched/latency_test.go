package sched

import (
	"testing"
	"time"
)

// runs has p measure n runs that take d.
func runs(p *LatencyEstimator, n int, d time.Duration) {
	for range n {
		if p.Measure() {
			p.Record(d)
		}
	}
}

func TestPace(t *testing.T) {
	var p LatencyEstimator
	if p.Quick(false) {
		t.Fatal("quick before the first run")
	}
	runs(&p, trusted-1, quickRun/2)
	runs(&p, 1, quickRun)
	runs(&p, trusted-1, quickRun/2)
	if p.Quick(false) {
		t.Error("quick although too few runs in a row were")
	}
	runs(&p, 1, quickRun/2)
	if !p.Quick(false) {
		t.Error("not quick after quick runs")
	}
	runs(&p, sampleOne, slowRun/2)
	if !p.Quick(false) {
		t.Error("not quick after a run that was a little longer")
	}
	runs(&p, sampleOne, 2*slowRun)
	if p.Quick(false) {
		t.Error("quick after a slow run")
	}
	runs(&p, mistrust+trusted-2, 0)
	if p.Quick(false) {
		t.Error("quick again too soon")
	}
	runs(&p, 2, 0)
	if !p.Quick(false) {
		t.Error("never quick again")
	}
}

func TestPaceWaited(t *testing.T) {
	var p LatencyEstimator
	runs(&p, trusted, 0)
	p.Waited()
	if p.Quick(false) {
		t.Error("quick although the handler waits")
	}
}

// Handlers that are longer than quick ones are run by the reader only while none else is under way.
func TestPaceBrisk(t *testing.T) {
	var p LatencyEstimator
	runs(&p, trusted-1, briskRun/2)
	if p.Quick(true) {
		t.Error("trusted too soon")
	}
	runs(&p, 1, briskRun/2)
	if !p.Quick(true) || p.Quick(false) {
		t.Errorf("quick alone: %v, beside others: %v", p.Quick(true), p.Quick(false))
	}
	runs(&p, sampleOne, sluggishRun/2) // learned for quick ones, each measured
	if !p.Quick(true) {
		t.Error("not brisk after runs that were a little longer")
	}
	runs(&p, 1, 2*sluggishRun)
	if p.Quick(true) {
		t.Error("brisk after a slow run")
	}
	p = LatencyEstimator{}
	runs(&p, trusted, 0)
	p.Waited()
	if p.Quick(true) {
		t.Error("brisk although the handler waits")
	}
}
