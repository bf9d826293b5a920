package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"cinnabar/verbs"
)

// pingpongTimeout bounds each step of finding each other once the TCP
// connection stands, so that a peer which stops half-way does not hang us.
const pingpongTimeout = 10 * time.Second

// listenPingpong listens on every address of this machine.
func listenPingpong(ctx context.Context, port uint16) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("couldn't listen to port %d: %w; choose another with -p on both sides", port, err)
	}
	return l, nil
}

// pingpongServer serves the first client that makes itself understood.
func pingpongServer(ctx context.Context, dev *verbs.Device, l net.Listener, o *pingpongOptions, s streams) error {
	b, err := newBouncer(dev, o)
	if err != nil {
		return err
	}
	// The address is known only when somebody came through it.
	if _, err := io.WriteString(s.out, destLine("local", b.own)); err != nil {
		return errors.Join(err, b.release())
	}
	remote, err := b.serve(ctx, dev, l, s)
	if err != nil {
		return errors.Join(err, b.release())
	}
	if _, err := io.WriteString(s.out, destLine("remote", remote)); err != nil {
		return errors.Join(err, b.close(ctx))
	}
	return b.finish(ctx, false, s)
}

// serve takes clients until one is connected. A stranger on the port is
// reported and does no harm; a client with other settings ends the wait, since
// the user wants to know.
func (b *bouncer) serve(ctx context.Context, dev *verbs.Device, l net.Listener, s streams) (dest, error) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			return dest{}, fmt.Errorf("wait for a client: %w", reason(ctx, err))
		}
		remote, err := b.meetClient(ctx, dev, c)
		if err == nil {
			return remote, l.Close()
		}
		if ctx.Err() != nil || b.attempted || errors.Is(err, errSettings) {
			return dest{}, err
		}
		fmt.Fprintf(s.err, "pingpong: %s: %v\n", c.RemoteAddr(), err)
	}
}

// meetClient does the server's half of the exchange on c and accepts the
// connection that follows from it.
func (b *bouncer) meetClient(ctx context.Context, dev *verbs.Device, c net.Conn) (dest, error) {
	ctx, cancel := context.WithTimeout(ctx, pingpongTimeout)
	defer cancel()
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	remote, err := readDest(c)
	if err != nil {
		return dest{}, err
	}
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return dest{}, err
	}
	// The address by which the client came is one that it can reach.
	cm, err := verbs.Listen(dev, netip.AddrPortFrom(at.Addr().Unmap(), 0))
	if err != nil {
		return dest{}, fmt.Errorf("listen for the connect request: %w", err)
	}
	defer cm.Close()
	b.own = destOf(b.qp.Num(), cm.Addr())
	if _, err := c.Write(appendDest(nil, b.own)); err != nil {
		return dest{}, fmt.Errorf("couldn't send the local address: %w", err)
	}
	if err := readDone(c); err != nil {
		return dest{}, err
	}
	return remote, b.acceptClient(ctx, cm)
}

// acceptClient answers the connect request, which says what the client is
// going to do.
func (b *bouncer) acceptClient(ctx context.Context, cm *verbs.Listener) error {
	r, err := cm.Accept(ctx)
	if err != nil {
		return fmt.Errorf("wait for the client's connect request: %w", reason(ctx, err))
	}
	client, err := parseSettings(r.PrivateData())
	if err != nil {
		return errors.Join(err, r.Reject([]byte("no settings of pingpong in the private data")))
	}
	if differ := b.o.settings().mismatch(client); differ != "" {
		return errors.Join(fmt.Errorf("%w: %s", errSettings, differ), r.Reject(appendSettings(nil, b.o.settings())))
	}
	b.attempted = true
	return b.accept(ctx, r, verbs.ConnParam{})
}

// errSettings is the failure that both sides report when their options differ.
var errSettings = errors.New("settings differ; start both sides with the same")

// pingpongClient finds the server at addr and bounces messages with it.
func pingpongClient(ctx context.Context, dev *verbs.Device, addr netip.AddrPort, o *pingpongOptions, s streams) error {
	b, err := newBouncer(dev, o)
	if err != nil {
		return err
	}
	if err := b.meetServer(ctx, addr, s.out); err != nil {
		return errors.Join(err, b.release())
	}
	return b.finish(ctx, true, s)
}

// meetServer does the client's half of the exchange, prints both addresses
// and connects.
func (b *bouncer) meetServer(ctx context.Context, addr netip.AddrPort, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, pingpongTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return fmt.Errorf("couldn't connect to %s: %w; is a pingpong server running there?", addr, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return err
	}
	b.own = destOf(b.qp.Num(), netip.AddrPortFrom(at.Addr().Unmap(), 0))
	if _, err := io.WriteString(out, destLine("local", b.own)); err != nil {
		return err
	}
	remote, err := b.swap(c)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, destLine("remote", remote)); err != nil {
		return err
	}
	return b.connect(ctx, remote)
}

// swap sends the own side and returns the server's.
func (b *bouncer) swap(c net.Conn) (dest, error) {
	if _, err := c.Write(appendDest(nil, b.own)); err != nil {
		return dest{}, fmt.Errorf("couldn't send the local address: %w", err)
	}
	remote, err := readDest(c)
	if err != nil {
		return dest{}, err
	}
	if _, err := io.WriteString(c, destDone); err != nil {
		return dest{}, fmt.Errorf("couldn't confirm the remote address: %w", err)
	}
	return remote, nil
}

// connect dials the address that the server sent, with the settings.
func (b *bouncer) connect(ctx context.Context, remote dest) error {
	to, err := remote.addrPort()
	if err != nil {
		return err
	}
	err = b.dial(ctx, to, verbs.ConnParam{PrivateData: appendSettings(nil, b.o.settings())})
	rejected, ok := errors.AsType[*verbs.RejectedError](err)
	if !ok {
		return err
	}
	server, perr := parseSettings(rejected.PrivateData)
	if perr != nil {
		return err
	}
	return fmt.Errorf("%w: %s", errSettings, server.mismatch(b.o.settings()))
}

// readDest reads one side's text.
func readDest(r io.Reader) (dest, error) {
	var text [destLen]byte
	if n, err := io.ReadFull(r, text[:]); err != nil {
		return dest{}, fmt.Errorf("%d/%d: couldn't read the remote address: %w", n, destLen, err)
	}
	return parseDest(text[:])
}

// readDone reads the client's last word.
func readDone(r io.Reader) error {
	var text [len(destDone)]byte
	if _, err := io.ReadFull(r, text[:]); err != nil {
		return fmt.Errorf("couldn't read the client's confirmation: %w", err)
	}
	if string(text[:]) != destDone {
		return fmt.Errorf("the client ended the exchange with %q instead of %q", text, destDone)
	}
	return nil
}
