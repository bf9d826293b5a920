package peerproc

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/link"
)

// A stranger who does not know the secret gets nowhere, and the parent's
// connection is served all the same.
func TestPeerSecret(t *testing.T) {
	in, secret := io.Pipe()
	lines := &clitest.Lines{Seen: make(chan string, 1)}
	ended := make(chan error)
	var served string
	go func() {
		s := cli.Streams{In: in, Out: lines, Err: io.Discard}
		ended <- Main(t.Context(), s, func(ctx context.Context, x *link.Exchange) error { return x.Receive(ctx, &served) })
	}()
	if _, err := io.WriteString(secret, "open sesame\n"); err != nil {
		t.Fatal(err)
	}
	addr := clitest.WaitLine(t, lines.Seen, `^127\.0\.0\.1:\d+$`)[0]
	for _, word := range []string{`"open barley"`, "GET / HTTP/1.1\r\n", ""} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, word+"\n"); err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(c); err == nil && len(b) > 0 {
			t.Errorf("%q was answered with %q", word, b)
		}
		c.Close()
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	x := link.NewExchange(c)
	defer x.Close()
	if err := errors.Join(x.Send("open sesame"), x.Send("treasure")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || served != "treasure" {
		t.Errorf("served %q, %v", served, err)
	}
	secret.Close() // the watcher of the input ends
}

func TestPeerEndsWithItsParent(t *testing.T) {
	in, secret := io.Pipe()
	lines := &clitest.Lines{Seen: make(chan string, 1)}
	ended := make(chan error)
	go func() {
		ended <- Main(t.Context(), cli.Streams{In: in, Out: lines, Err: io.Discard}, nil)
	}()
	if _, err := io.WriteString(secret, "word\n"); err != nil {
		t.Fatal(err)
	}
	clitest.WaitLine(t, lines.Seen, "^127")
	secret.Close() // as the parent's end does
	if err := <-ended; !errors.Is(err, cli.ErrParentEnded) {
		t.Errorf("the peer ended with %v", err)
	}
}
