//go:build linux

package rdmacore_test

import (
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
)

// fact is one place in which a driver does not do what the suite asks for. What
// it does instead is asserted, so that a driver that learns it is noticed. What a
// driver says it cannot do is none: its capabilities have the suite skip that.
type fact struct {
	test     string // of the suite, group and name, which is skipped; "/" and a name: the suite has none, or its capabilities skip it
	standard string // what the book has
	observed string // what happens
	where    string // the function of the kernel, or of the library, that does it

	check func(t *testing.T, dev *verbs.Device) // asserts what is observed; nil: it harms the machine
}

// name is that of the sub-test.
func (f *fact) name() string { return strings.Trim(strings.ReplaceAll(f.test, "/", "-"), "-") }

// driverFacts has the table of each driver, by the beginning of its devices' names.
var driverFacts = map[string][]fact{"rxe": rxeFacts, "siw": siwFacts}

// factsOf returns the table of a device's driver.
func factsOf(device string) []fact {
	for driver, facts := range driverFacts {
		if strings.HasPrefix(device, driver) {
			return facts
		}
	}
	return nil
}

// factOf returns the fact that keeps the running test of the suite from passing.
func factOf(t *testing.T, device string) *fact {
	facts := factsOf(device)
	for i := range facts {
		if strings.HasSuffix(t.Name(), "TestConformance/"+facts[i].test) {
			return &facts[i]
		}
	}
	return nil
}

// TestDriver asserts what the driver of the device is known to do otherwise.
func TestDriver(t *testing.T) {
	name := testDevice(t)
	facts := factsOf(name)
	if len(facts) == 0 {
		t.Skipf("nothing is known of the driver of device %s", name)
	}
	for _, f := range facts {
		t.Run(f.name(), func(t *testing.T) {
			if f.check == nil {
				t.Skipf("not tried: %s (%s)", f.observed, f.where)
			}
			dev := openForSuite(t, name, verbstest.Options{})
			t.Cleanup(func() {
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
			})
			f.check(t, dev)
			if t.Failed() {
				t.Logf("standard: %s; observed: %s (%s)", f.standard, f.observed, f.where)
			}
		})
	}
}

// wantStatus waits for one completion of a side and checks its status.
func wantStatus(t *testing.T, s *verbstest.Side, who string, want verbs.WCStatus) {
	t.Helper()
	if got := s.Take(1)[0].Status; got != want {
		t.Errorf("the status of the %s is %v, was %v", who, got, want)
	}
}

// localFailure posts a write whose gather entry is spoilt.
func localFailure(t *testing.T, dev *verbs.Device, spoil func(p *verbstest.Pair, e *verbs.SGE), want verbs.WCStatus) {
	t.Helper()
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive)
	spoil(p, &wr.SGL[0])
	p.Active.PostSend(wr)
	wantStatus(t, p.Active, "requester", want)
}

// foreignDomain takes an entry of another protection domain.
func foreignDomain(p *verbstest.Pair, e *verbs.SGE) { *e = p.Passive.MR.SGE(0, 8) }

func wrongKey(_ *verbstest.Pair, e *verbs.SGE) { e.LKey ^= 1 << 20 }

// beyondEnd takes one byte more than the region has.
func beyondEnd(p *verbstest.Pair, e *verbs.SGE) {
	*e = p.Active.MR.SGE(0, p.Active.MR.Len())
	e.Length++
}

// noLastWQE breaks a queue pair on a shared receive queue by hand.
func noLastWQE(t *testing.T, dev *verbs.Device) {
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{SRQ: true})
	p.Passive.Break()
	p.Passive.AwaitEnd()
	for _, ev := range pendingEvents(dev) {
		if ev.Type == verbs.EventQPLastWQEReached {
			t.Errorf("event %v, there was none", ev.Type)
		}
	}
}
