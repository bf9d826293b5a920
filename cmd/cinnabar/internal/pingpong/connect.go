package pingpong

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

const (
	defaultPort = 18515

	// meetTimeout bounds the time in which the two sides find each other once
	// their TCP connection stands, so that a peer which stops half-way does not block the other.
	meetTimeout = 10 * time.Second

	// defaultTimeout is the default value of --timeout.
	defaultTimeout = 30 * time.Second
)

// settings returns the values that both sides must agree on, by the names of their options.
func (o *options) settings() map[string]string {
	return map[string]string{"size": strconv.Itoa(o.size), "iters": strconv.Itoa(o.iters), "transport": cmp.Or(o.service, verbs.RC).String()}
}

// addressLine returns the address line of ibv_rc_pingpong for a side.
func addressLine(side string, in oob.QPInfo) string {
	return fmt.Sprintf("  %-15s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s\n", side+" address:", in.LID, in.QPN, in.PSN, netip.AddrFrom16(in.GID))
}

// token is the private data of the client's connect request, so that the server
// takes no other: the numbers that only the two sides of the exchange know.
func token(client oob.QPInfo) string { return fmt.Sprintf("%06x:%06x", client.QPN, client.PSN) }

// listen listens on every address of this machine.
func listen(ctx context.Context, port uint16) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("couldn't listen to port %d: %w; choose another with -p on both sides", port, err)
	}
	return l, nil
}

// runServer serves the first client that makes itself understood.
func runServer(ctx context.Context, dev *verbs.Device, l net.Listener, o *options, s cli.Streams) error {
	b, err := newBouncer(dev, o)
	if err != nil {
		return err
	}
	if err := b.serve(ctx, dev, l, s); err != nil {
		return errors.Join(err, b.Release())
	}
	return b.finish(ctx, false, s)
}

// serve takes clients until one is connected. A stranger on the port is
// reported and does no harm; a client with other settings ends the wait, since
// the user wants to know.
func (b *bouncer) serve(ctx context.Context, dev *verbs.Device, l net.Listener, s cli.Streams) error {
	if b.oob == nil {
		if err := link.CheckDataPort(dev, l.Addr(), b.o.data); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(s.Out, addressLine("local", b.own)); err != nil {
		return err
	}
	defer cli.InterruptAccept(ctx, l)()
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("wait for a client: %w", cli.Reason(ctx, err))
		}
		err = b.meetClient(ctx, dev, c, s.Out)
		if err == nil {
			return l.Close()
		}
		if _, differ := errors.AsType[*oob.SettingsError](err); differ || b.attempted || ctx.Err() != nil {
			return err
		}
		s.NotePeer(c.RemoteAddr(), "pingpong: %s: %s; is it a cinnabar pingpong?", c.RemoteAddr(), cli.Printable(cli.OneLine(err)))
	}
}

// meetClient exchanges addresses and settings on c and accepts the connection
// that follows from it.
func (b *bouncer) meetClient(ctx context.Context, dev *verbs.Device, c net.Conn, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	defer cli.Shut(c)
	if b.oob != nil {
		return b.meetByHand(ctx, c, false, out)
	}
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return err
	}
	// The address by which the client came is one that it can reach.
	cm, err := verbs.Listen(dev, netip.AddrPortFrom(at.Addr().Unmap(), b.o.data))
	if err != nil {
		return fmt.Errorf("listen for the connect request: %w", err)
	}
	defer cli.Shut(cm)
	own := b.own
	own.Addr = cm.Addr()
	remote, err := oob.Exchange(ctx, c, own)
	if err != nil {
		return err
	}
	return b.acceptClient(ctx, cm, remote, out)
}

// acceptClient waits for the connect request of the client that the exchange
// was with, and turns others away.
func (b *bouncer) acceptClient(ctx context.Context, cm *verbs.Listener, remote oob.QPInfo, out io.Writer) error {
	for {
		r, err := cm.Accept(ctx)
		if err != nil {
			return fmt.Errorf("wait for the client's connect request: %w", cli.Reason(ctx, err))
		}
		if said := r.PrivateData(); len(said) < len(token(remote)) || string(said[:len(token(remote))]) != token(remote) {
			_ = r.Reject(nil) // a stranger; whether it hears us does not matter
			continue
		}
		b.attempted = true
		if err := b.Accept(ctx, r, verbs.ConnParam{}); err != nil {
			return err
		}
		_, err = io.WriteString(out, addressLine("remote", remote))
		return err
	}
}

// runClient finds the server at addr and bounces messages with it.
func runClient(ctx context.Context, dev *verbs.Device, addr netip.AddrPort, o *options, s cli.Streams) error {
	b, err := newBouncer(dev, o)
	if err != nil {
		return err
	}
	if err := b.meetServer(ctx, addr, s.Out); err != nil {
		return errors.Join(err, b.Release())
	}
	return b.finish(ctx, true, s)
}

// meetServer exchanges addresses and settings with the server, prints both
// addresses and connects.
func (b *bouncer) meetServer(ctx context.Context, addr netip.AddrPort, out io.Writer) error {
	if _, err := io.WriteString(out, addressLine("local", b.own)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return fmt.Errorf("couldn't connect to %s: %w; is a pingpong server running there?", addr, err)
	}
	defer cli.Shut(c)
	if b.oob != nil {
		return b.meetByHand(ctx, c, true, out)
	}
	remote, err := oob.Exchange(ctx, c, b.own)
	if err != nil {
		return fmt.Errorf("couldn't read the remote address: %w", err)
	}
	if _, err := io.WriteString(out, addressLine("remote", remote)); err != nil {
		return err
	}
	if !remote.Addr.IsValid() {
		return fmt.Errorf("the server at %s sent no address to connect to; is it a cinnabar pingpong?", addr)
	}
	to := remote.Addr
	if to.Addr().IsLinkLocalUnicast() { // the zone is ours to know
		to = netip.AddrPortFrom(to.Addr().WithZone(addr.Addr().Zone()), to.Port())
	}
	return b.Dial(ctx, to, verbs.ConnParam{PrivateData: []byte(token(b.own))})
}
