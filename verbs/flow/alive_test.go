package flow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/verbstest/memdev"
)

// over connects two ends over a device, and closes them when the test has run.
func over(t *testing.T, dev *verbs.Device, cfg Config, test func(a, p *Conn)) {
	t.Helper()
	l, err := Listen(dev, loopback, cfg)
	must(t, err)
	accepted := make(chan *Conn, 1)
	go func() {
		p, err := l.Accept(t.Context())
		if err != nil {
			t.Error(err)
		}
		accepted <- p
	}()
	a, err := Dial(t.Context(), dev, l.Addr(), cfg)
	must(t, err)
	p := <-accepted
	test(a, p)
	must(t, errors.Join(a.Close(), p.Close(), l.Close(), dev.Close()))
}

// elapse has time pass.
func elapse(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	<-ctx.Done()
}

// TestKeepAliveIdle keeps a connection on which nothing happens for half an hour, since the devices answer for the programs.
// parity: S17
func TestKeepAliveIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
		over(t, dev, Config{KeepAlive: time.Minute}, func(a, p *Conn) {
			elapse(30 * time.Minute)
			must(t, a.Send(t.Context(), []byte("still here")))
			must(t, recv(t, p).Release())
			if a.Err() != nil || p.Err() != nil {
				t.Error(a.Err(), p.Err())
			}
		})
	})
}

// inTime checks that a silence that began then has ended a connection, neither too early nor late. Either end may have noticed.
func inTime(t *testing.T, begin time.Time, a, p *Conn) {
	t.Helper()
	<-p.Done()
	if d, patience := time.Since(begin), p.cfg.KeepAlive; d < patience || d > patience+patience/checksPerKeepAlive || !errors.Is(errors.Join(a.Err(), p.Err()), ErrSilent) {
		t.Errorf("after %v: %v, %v", d, a.Err(), p.Err())
	}
}

// TestKeepAliveSilent ends a connection whose peer's device does not answer, in time, and tells those who wait.
// parity: S17
func TestKeepAliveSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
			{Match: fault.Match{At: fault.AtSend, Ops: []verbs.Opcode{verbs.OpRead}}, Do: fault.Drop()},
		}})
		over(t, dev, Config{KeepAlive: time.Minute}, func(a, p *Conn) {
			begin := time.Now()
			if _, err := p.Recv(t.Context()); err == nil {
				t.Error("a record from nobody")
			}
			inTime(t, begin, a, p)
		})
	})
}

// TestKeepAliveUnopened ends a connection whose peer has dialed and sends nothing: each holds a ring, and silent ones could be had
// for nothing, also where Config has no KeepAlive.
//
// parity: S17
func TestKeepAliveUnopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
			{Match: fault.Match{At: fault.AtSend, Ops: []verbs.Opcode{verbs.OpSend}}, Do: fault.Drop()},
		}})
		over(t, dev, Config{Linger: -1}, func(_, p *Conn) {
			begin := time.Now()
			<-p.Done()
			if d := time.Since(begin); d != firstLimit || !errors.Is(p.Err(), ErrSilent) {
				t.Errorf("after %v: %v", d, p.Err())
			}
		})
	})
}

// TestKeepAliveSlow keeps a peer whose device's answer is behind much else, as long as something comes from it now and then.
// parity: S17
func TestKeepAliveSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
			{Match: fault.Match{At: fault.AtSend, Queue: 1, Ops: []verbs.Opcode{verbs.OpRead}}, Do: fault.Drop()},
		}})
		over(t, dev, Config{KeepAlive: time.Minute, Linger: -1}, func(a, p *Conn) {
			for range 10 {
				elapse(55 * time.Second)
				must(t, p.Send(t.Context(), []byte("at last")))
				must(t, recv(t, a).Release())
			}
		})
	})
}

// TestKeepAliveBusy does not ask a peer that is heard.
// parity: S17
func TestKeepAliveBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
			{Match: fault.Match{At: fault.AtSend, Ops: []verbs.Opcode{verbs.OpRead}}, Do: fault.Drop()},
		}})
		over(t, dev, Config{KeepAlive: time.Minute}, func(a, p *Conn) {
			for range 20 {
				for _, from := range []*Conn{a, p} {
					must(t, from.Send(t.Context(), []byte("tick")))
				}
				for _, at := range []*Conn{a, p} {
					must(t, recv(t, at).Release())
				}
				elapse(10 * time.Second)
			}
		})
	})
}

// TestKeepAliveConfig refuses times that are none.
func TestKeepAliveConfig(t *testing.T) {
	for _, d := range []time.Duration{-1, 1, leastAlive - 1} {
		if _, err := (Config{KeepAlive: d}).filled(); err == nil {
			t.Errorf("%v", d)
		}
	}
}
