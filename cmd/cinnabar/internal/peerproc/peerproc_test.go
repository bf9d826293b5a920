package peerproc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
)

// A stranger who does not know the secret gets nowhere, and the parent's
// connection is served all the same.
func TestPeerSecret(t *testing.T) {
	in, secret := io.Pipe()
	out, w := io.Pipe()
	ended := make(chan error)
	var served string
	go func() {
		s := cli.Streams{In: in, Out: w, Err: io.Discard}
		ended <- Main(t.Context(), s, func(ctx context.Context, x *link.Exchange) error { return x.Receive(ctx, &served) })
	}()
	if _, err := io.WriteString(secret, "open sesame\n"); err != nil {
		t.Fatal(err)
	}
	addr := firstLine(t, out)
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
	out, w := io.Pipe()
	ended := make(chan error)
	go func() {
		ended <- Main(t.Context(), cli.Streams{In: in, Out: w, Err: io.Discard}, nil)
	}()
	if _, err := io.WriteString(secret, "word\n"); err != nil {
		t.Fatal(err)
	}
	firstLine(t, out)
	secret.Close() // as the parent's end does
	if err := <-ended; !errors.Is(err, cli.ErrParentEnded) {
		t.Errorf("the peer ended with %v", err)
	}
}

// firstLine reads the line with the address that the peer prints.
func firstLine(t *testing.T, out io.Reader) string {
	t.Helper()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "127.0.0.1:") {
		t.Fatalf("the peer prints %q, %v", line, err)
	}
	return strings.TrimSuffix(line, "\n")
}
