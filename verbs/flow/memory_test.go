package flow

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// TestOtherDevice sends short and long records over a device without sockets, whose completions come otherwise.
func TestOtherDevice(t *testing.T) {
	dev, ctx := verbs.NewDevice(memdev.Open(memdev.Config{})), devicetest.Context(t)
	l, err := Listen(dev, loopback, Config{Records: 3, Bytes: 4096, Inline: 100})
	must(t, err)
	accepted := make(chan *Conn, 1)
	go func() {
		p, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- p
	}()
	a, err := Dial(ctx, dev, l.Addr(), Config{})
	must(t, err)
	p := <-accepted
	must(t, l.Close())
	sent := make(chan error, 1)
	go func() {
		for i := range 200 {
			if err := a.Send(ctx, fill(make([]byte, i*20), i)); err != nil {
				sent <- err
				return
			}
		}
		sent <- a.CloseWrite()
	}()
	for i := range 200 {
		r := recv(t, p)
		if want := fill(make([]byte, i*20), i); !bytes.Equal(r.Bytes(), want) {
			t.Errorf("record %d of %d bytes is not what was sent", i, len(want))
		}
		must(t, r.Release())
	}
	if _, err := p.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	must(t, errors.Join(<-sent, a.Close(), p.Close(), dev.Close()))
}

// TestMemoryOfConnectionsIsShared has one host connect until the listener refuses it: it has its share of Config.MaxMemory,
// another host finds room, and a connection that is closed makes room for the next one. The counted memory of all is
// given back in the end.
func TestMemoryOfConnectionsIsShared(t *testing.T) {
	dev, ctx := verbs.NewDevice(memdev.Open(memdev.Config{})), devicetest.Context(t)
	cfg := Config{Records: 4, Bytes: 64 << 10}
	full, err := cfg.filled()
	must(t, err)
	each := full.memory()
	cfg.MaxMemory = 16 * each
	l, err := Listen(dev, loopback, cfg)
	must(t, err)
	connect := func() (a, p *Conn, err error) {
		accepted := make(chan *Conn, 1)
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			c, _ := l.Accept(waiting) // fails if the request is refused
			accepted <- c
		}()
		if a, err = Dial(ctx, dev, l.Addr(), Config{Records: 4, Bytes: 4096}); err != nil {
			cancel()
		}
		return a, <-accepted, err
	}
	var ends []*Conn
	for err == nil {
		var a, p *Conn
		if a, p, err = connect(); err == nil {
			ends = append(ends, a, p)
		}
	}
	if _, ok := errors.AsType[*verbs.RejectedError](err); !ok {
		t.Fatalf("beyond the limit: %v, want a rejection", err)
	}
	const most = 9 // sixteenths
	host := l.book.Account(hostquota.HostOf(loopback.Addr()))
	if n, used := len(ends)/2, host.Used(hostquota.Memory); n < 2 || n > most || used != int64(n)*each {
		t.Errorf("one host has %d connections and %d bytes, want at most %d connections, of %d bytes each", n, used, most, each)
	}
	other := l.book.Account(hostquota.ProcessHost(0, 1))
	if err := other.Take(hostquota.Memory, each); err != nil {
		t.Errorf("another host: %v", err)
	}
	other.Give(hostquota.Memory, each)
	must(t, errors.Join(ends[0].Close(), ends[1].Close()))
	a, p, err := connect()
	must(t, err)
	for _, c := range append(ends[2:], a, p) {
		must(t, c.Close())
	}
	if used := host.Used(hostquota.Memory); used != 0 {
		t.Errorf("%d bytes are counted when all connections are closed", used)
	}
	must(t, errors.Join(l.Close(), dev.Close()))
}

// TestStagingIsMadeWhenNeeded sends short records, which need no memory to copy long ones to, and then a long one.
func TestStagingIsMadeWhenNeeded(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	must(t, a.Send(devicetest.Context(t), make([]byte, defaultInline)))
	must(t, recv(t, p).Release())
	if a.staging.Load() != nil || p.staging.Load() != nil {
		t.Error("a connection that has sent short records only has memory for long ones")
	}
	must(t, a.Send(devicetest.Context(t), make([]byte, 4*defaultInline)))
	must(t, recv(t, p).Release())
	if a.staging.Load() == nil {
		t.Error("a long record was sent without memory to copy it to")
	}
}

// TestMaxMemoryIsForListeners listens with less memory than one connection holds, which is refused, and connects with the same
// limit, which is for listeners only.
func TestMaxMemoryIsForListeners(t *testing.T) {
	dev, ctx := verbs.NewDevice(memdev.Open(memdev.Config{})), devicetest.Context(t)
	little := Config{MaxMemory: 1}
	if _, err := Listen(dev, loopback, little); err == nil || !strings.Contains(err.Error(), "Config.MaxMemory is 1") {
		t.Errorf("Listen: %v", err)
	}
	l, err := Listen(dev, loopback, Config{})
	must(t, err)
	a, err := Dial(ctx, dev, l.Addr(), little)
	must(t, err)
	p, err := l.Accept(ctx)
	must(t, err)
	must(t, errors.Join(a.Close(), p.Close(), l.Close(), dev.Close()))
}
