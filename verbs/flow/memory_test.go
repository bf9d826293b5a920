package flow

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// TestOtherDevice sends short and long records over a device without sockets, whose completions come otherwise.
func TestOtherDevice(t *testing.T) {
	dev, ctx := verbs.NewDevice(memdev.Open(memdev.Config{})), testContext(t)
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
