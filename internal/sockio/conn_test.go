package sockio

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// connPair returns two Conns of one loopback connection.
func connPair(t testing.TB) (a, b *Conn) {
	t.Helper()
	ca, cb := tcpPair(t)
	return mustNew(t, ca), mustNew(t, cb)
}

func mustNew(t testing.TB, tcp *net.TCPConn) *Conn {
	t.Helper()
	c, err := New(tcp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // some tests have closed it
	return c
}

func TestConnAddresses(t *testing.T) {
	a, b := connPair(t)
	if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() {
		t.Errorf("addresses %v-%v and %v-%v do not match", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	if want := netip.MustParseAddr("127.0.0.1"); a.LocalAddr().Addr() != want {
		t.Errorf("address %v, want %v in 4-byte form", a.LocalAddr().Addr(), want)
	}
	local := a.LocalAddr()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a.LocalAddr() != local {
		t.Errorf("address after Close: %v, want %v", a.LocalAddr(), local)
	}
}

func TestConnMSS(t *testing.T) {
	a, _ := connPair(t)
	if got := a.MSS(); got < 536 || (!Direct && got != defaultMSS) {
		t.Errorf("MSS %d", got)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got := a.MSS(); got != defaultMSS {
		t.Errorf("MSS of a closed connection %d, want %d", got, defaultMSS)
	}
}

func TestConnUserTimeout(t *testing.T) {
	a, _ := connPair(t)
	for _, d := range []time.Duration{0, 1, time.Second, maxUserTimeout * time.Millisecond} {
		err := a.SetUserTimeout(d)
		if Direct && err != nil || !Direct && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("SetUserTimeout(%v): %v", d, err)
		}
	}
	for _, d := range []time.Duration{-1, (maxUserTimeout + 1) * time.Millisecond, 1<<63 - 1} {
		if err := a.SetUserTimeout(d); err == nil || !strings.Contains(err.Error(), "must be from 0") {
			t.Errorf("SetUserTimeout(%v): %v, want the range", d, err)
		}
	}
	_ = a.Close()
	if err := a.SetUserTimeout(time.Second); Direct && !errors.Is(err, net.ErrClosed) {
		t.Errorf("SetUserTimeout after Close: %v, want net.ErrClosed", err)
	}
}

func TestNewOfClosed(t *testing.T) {
	tcp, _ := tcpPair(t)
	_ = tcp.Close()
	c, err := New(tcp)
	if err != nil {
		return // refused at once is fine, too
	}
	if err := c.WaitRead(func() bool { return false }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("WaitRead on a closed connection: %v, want net.ErrClosed", err)
	}
}

// TestConnRoundTrip goes once through every exported transfer method.
func TestConnRoundTrip(t *testing.T) {
	a, b := connPair(t)
	err := a.WaitWrite(func() bool {
		n, err := a.TryWritev([][]byte{[]byte("hel"), []byte("lo")})
		if n != 5 || err != nil {
			t.Errorf("TryWritev = %d, %v", n, err)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var got []byte
	buf := make([]byte, 3)
	err = b.WaitRead(func() bool {
		for {
			n, err := b.TryReadv([][]byte{buf})
			got = append(got, buf[:n]...)
			if err != nil {
				return errors.Is(err, io.EOF)
			}
		}
	})
	if err != nil || string(got) != "hello" {
		t.Errorf("received %q, %v, want hello", got, err)
	}
	a.WakeRead()
	a.WakeWrite()
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
