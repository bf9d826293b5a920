package recording

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func parse(t *testing.T, text string) *Conversation {
	t.Helper()
	r, err := Parse([]byte("conn\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return &r.Conversations[0]
}

// limited ends long after everything that works.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // nothing is lost
	return l
}

// dial connects to a listener. Reads and writes fail long after everything that works.
func dial(t *testing.T, to net.Addr) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is lost
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// TestPlayBothSides has a Player of each side play a conversation to the other.
func TestPlayBothSides(t *testing.T) {
	const text = "> 0102 ~1+2*100000\n< 0304\n> 0506\n> close\n< 07\n< close\n"
	l := listenLoopback(t)
	served := make(chan error, 1)
	listener, dialer := NewListener(parse(t, text)), NewDialer(parse(t, text))
	ctx := limited(t)
	go func() { served <- listener.Serve(ctx, l) }()
	if err := dialer.Play(ctx, dial(t, l.Addr())); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if n := len(listener.Received()); n != 2 {
		t.Errorf("the listening side has received %d messages, want 2", n)
	}
}

// TestPlayerFindsFields has the player use the values that it was sent, and the port at which it listens.
func TestPlayerFindsFields(t *testing.T) {
	l := listenLoopback(t)
	served := make(chan error, 1)
	p := NewListener(parse(t, "> $tag1*4\n< $tag1*4 $server*2\n> close\n"))
	ctx := limited(t)
	go func() { served <- p.Serve(ctx, l) }()
	conn := dial(t, l.Addr())
	if _, err := conn.Write([]byte{9, 8, 7, 6}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 6)
	want := binary.BigEndian.AppendUint16([]byte{9, 8, 7, 6}, netip.MustParseAddrPort(l.Addr().String()).Port())
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%x, %v; want %x", got, err, want)
	}
	_ = conn.Close() // which ends the stream
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestPlayerRefuses has the program under test send something else, too little, and too much.
func TestPlayerRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, send, want string }{
		{"another byte", "> 010203\n", "010403", "byte 1 of 3 is 04, want 02"},
		{"too little", "> 010203\n", "0102", "2 of 3 bytes come"},
		{"too much", "> 01\n> close\n", "0102", "where the stream should end"},
		{"field before its value", "< $key1*8\n", "", "has no value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := listenLoopback(t)
			served := make(chan error, 1)
			p := NewListener(parse(t, tt.text))
			ctx := limited(t)
			go func() { served <- p.Serve(ctx, l) }()
			conn := dial(t, l.Addr())
			if _, err := conn.Write(unhex(t, tt.send)); err != nil {
				t.Fatal(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if err := <-served; err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v; want %s", err, tt.want)
			}
			_ = conn.Close() // nothing is lost
		})
	}
}

// TestPlayerEnds ends a player that waits for a connection, and one that waits for a message.
func TestPlayerEnds(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := NewListener(parse(t, "> 01\n")).Serve(ctx, listenLoopback(t)); !errors.Is(err, why) {
		t.Errorf("without a connection: %v", err)
	}
	here, there := net.Pipe()
	defer func() { _ = there.Close() }() // nothing is lost
	if err := NewListener(parse(t, "> 01\n")).Play(ctx, here); !errors.Is(err, why) {
		t.Errorf("without a message: %v", err)
	}
}

// TestRelay carries a conversation of two players, and keeps it.
func TestRelay(t *testing.T) {
	message := func(payload ...byte) []byte {
		b := append(make([]byte, headerSize), payload...)
		binary.LittleEndian.PutUint64(b[offLength:], uint64(len(b)))
		return b
	}
	connect := bytes.Repeat([]byte{3}, connectSize)
	want := []Raw{{true, connect}, {false, connect}, {true, message(1, 2, 3)}, {false, message()}, {true, nil}, {false, nil}}
	c := Plain(want, netip.AddrPort{}, netip.AddrPort{})
	l := listenLoopback(t)
	served := make(chan error, 1)
	ctx := limited(t)
	go func() { served <- NewListener(&c).Serve(ctx, l) }()
	r, err := NewRelay("127.0.0.1:0", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(NewDialer(&c).Play(ctx, dial(t, r.l.Addr())), <-served); err != nil {
		t.Error(err)
	}
	got, err := r.Close()
	if err != nil || len(got) != 1 {
		t.Fatalf("%d conversations, %v", len(got), err)
	}
	again := Plain(got[0], netip.AddrPort{}, netip.AddrPort{})
	if a, b := again.append(nil), c.append(nil); !bytes.Equal(a, b) {
		t.Errorf("kept\n%s, want\n%s", a, b)
	}
}

// TestRelayRefuses has a program send what is no message.
func TestRelayRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"short connection request": make([]byte, connectSize-1),
		"short header":             make([]byte, connectSize+headerSize-1),
		"length 0":                 make([]byte, connectSize+headerSize),
		"length above 4 MiB":       append(make([]byte, connectSize+headerSize-1), 1),
	} {
		t.Run(name, func(t *testing.T) {
			l := listenLoopback(t)
			r, err := NewRelay("127.0.0.1:0", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, r.l.Addr())
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
			_ = conn.Close() // which ends the stream
			to, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_ = to.Close() // which ends the other
			if _, err := r.Close(); err == nil {
				t.Error("it is carried")
			}
		})
	}
}

// TestShorten writes parts as formulas, and expands them again.
func TestShorten(t *testing.T) {
	for name, parts := range map[string][][]byte{
		"nothing":            {},
		"short":              {[]byte("abc")},
		"formula":            {Pattern(9, 0, 5000)},
		"formula in between": {[]byte("abc"), Pattern(200, 70000, 200000), []byte("xyz")},
		"formulas":           {Pattern(1, 300, 1000), Pattern(2, 131072-7, 1000), Pattern(3, 65536-100, 164)},
		"repeated":           {bytes.Repeat([]byte{1, 2, 3}, 100), make([]byte, 4096)},
	} {
		t.Run(name, func(t *testing.T) {
			b := bytes.Join(parts, nil)
			m := Message{Items: shorten(b)}
			if got, err := (values{}).expand(&m, nil); err != nil || !bytes.Equal(got, b) {
				t.Errorf("%v is not %d bytes, %v", m.Items, len(b), err)
			}
			if text := m.append(nil); len(text) > 200 {
				t.Errorf("%d bytes are written in %d", len(b), len(text))
			}
		})
	}
}
