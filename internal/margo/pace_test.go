package margo

import (
	"testing"
	"time"
)

// runs has p measure n runs that take d.
func runs(p *Pace, n int, d time.Duration) {
	for range n {
		if p.Measure() {
			p.Record(d)
		}
	}
}

func TestPace(t *testing.T) {
	var p Pace
	if p.Quick() {
		t.Fatal("quick before the first run")
	}
	runs(&p, trusted-1, quickRun/2)
	runs(&p, 1, quickRun)
	runs(&p, trusted-1, quickRun/2)
	if p.Quick() {
		t.Error("quick although too few runs in a row were")
	}
	runs(&p, 1, quickRun/2)
	if !p.Quick() {
		t.Error("not quick after quick runs")
	}
	runs(&p, sampleOne, slowRun/2)
	if !p.Quick() {
		t.Error("not quick after a run that was a little longer")
	}
	runs(&p, sampleOne, 2*slowRun)
	if p.Quick() {
		t.Error("quick after a slow run")
	}
	runs(&p, mistrust+trusted-1, 0)
	if p.Quick() {
		t.Error("quick again too soon")
	}
	runs(&p, 1, 0)
	if !p.Quick() {
		t.Error("never quick again")
	}
}

func TestPaceWaited(t *testing.T) {
	var p Pace
	runs(&p, trusted, 0)
	p.Waited()
	if p.Quick() {
		t.Error("quick although the handler waits")
	}
}
