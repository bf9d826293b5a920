package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// Where queue pairs are connected by hand, the two sides exchange the messages of rdma-core's
// ibv_*_pingpong, so that the other side may be one of them:
//
//	client to server   "LLLL:QQQQQQ:PPPPPP:GID", the GID in 32 digits, and a NUL
//	server to client   the same, once its queue pair is in RTS
//	client to server   "done" and a NUL
//
// rdma-core's hang up here, and each of their reads expects one message and not a
// byte more. A server of ours goes on with a line, and a client of ours that sees
// one answers: so settings that differ are found, and rdma-core's see no difference.
const (
	destLayout = "0000:000000:000000:00000000000000000000000000000000\x00"
	doneWord   = "done\x00"

	// maxLine bounds the line with the settings.
	maxLine = 512
)

// The error of a run in which no message arrived for the time of --timeout wraps one of these. limitSilence puts that time in front of the text.
var (
	errFrozen  = errors.New("the peer is frozen, or the network to it is down; see whether its process runs") // with a connection manager, whose connection ends with the peer
	errSilence = errors.New("the peer is frozen or gone, does fewer exchanges or has another transport, or a message was lost; give both sides the same options")
)

// limitSilence returns a context that ends when no work request has completed for the time of --timeout, because the connection of a frozen process does not
// end, and a queue pair that was connected by hand has no connection.
func (b *bouncer) limitSilence(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	reason := errSilence
	if b.oob == nil {
		reason = errFrozen
	}
	b.silence = time.AfterFunc(b.o.timeout, func() { cancel(fmt.Errorf("no message for %v (--timeout): %w", b.o.timeout, reason)) })
	return ctx, func() {
		b.silence.Stop()
		cancel(nil)
	}
}

// identify works out how the queue pair is connected and by which numbers the peer names it.
func (b *bouncer) identify() (err error) {
	a, err := b.PD.Device().Query()
	if err != nil {
		return err
	}
	if !a.Caps.Has(verbs.CapRawState) {
		b.own, err = oob.LocalQPInfo(b.QP)
		return err
	}
	b.oob = &oob.Config{MTU: b.o.pathMTU(), Path: verbs.AHAttr{PortNum: uint8(b.o.ibPort), SL: uint8(b.o.sl)}}
	if b.o.gid >= 0 {
		b.oob.Path.SGIDIndex, b.oob.Path.HasSGIDIndex = uint8(b.o.gid), true
	}
	if b.own, err = b.oob.LocalQPInfo(b.QP); err != nil {
		return err
	}
	return b.oob.InitQP(b.QP)
}

// meetByHand exchanges addresses with the peer on c, connects, and prints the
// peer's address.
func (b *bouncer) meetByHand(ctx context.Context, c net.Conn, client bool, out io.Writer) error {
	stop := context.AfterFunc(ctx, func() { cli.Shut(c) })
	defer stop()
	meet := b.serveByHand
	if client {
		meet = b.callByHand
	}
	remote, err := meet(c)
	if err != nil {
		return fmt.Errorf("exchange addresses: %w", cli.Reason(ctx, err))
	}
	if err := b.aim(remote); err != nil {
		return err
	}
	_, err = io.WriteString(out, addressLine("remote", remote))
	return err
}

// aim directs datagrams to the peer. Its key is the one that all pingpongs have.
func (b *bouncer) aim(remote oob.QPInfo) error {
	if b.o.service != verbs.UD {
		return nil
	}
	ah, err := b.PD.CreateAH(b.oob.AHAttr(remote))
	if err != nil {
		return err
	}
	b.Handles = append(b.Handles, ah)
	wr := &b.send[0]
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, remote.QPN, verbs.DefaultQKey
	return nil
}

// callByHand is the client's part of the exchange.
func (b *bouncer) callByHand(c net.Conn) (oob.QPInfo, error) {
	if err := b.writeDest(c); err != nil {
		return oob.QPInfo{}, err
	}
	remote, err := readDest(c)
	if err != nil {
		return remote, err
	}
	if err := b.oob.DriveToRTS(b.QP, b.own, remote); err != nil {
		return remote, err
	}
	if _, err := io.WriteString(c, doneWord); err != nil {
		return remote, err
	}
	line, ok, err := readSettings(c)
	if err != nil || !ok {
		return remote, err
	}
	if err := b.writeSettings(c); err != nil {
		return remote, err
	}
	return remote, b.compare(line)
}

// serveByHand is the server's part. Once the queue pair is used, a failure is final.
func (b *bouncer) serveByHand(c net.Conn) (oob.QPInfo, error) {
	remote, err := readDest(c)
	if err != nil {
		return remote, err
	}
	b.attempted = true
	if err := b.oob.DriveToRTS(b.QP, b.own, remote); err != nil {
		return remote, err
	}
	if err := b.writeDest(c); err != nil {
		return remote, err
	}
	done := make([]byte, len(doneWord))
	if _, err := io.ReadFull(c, done); err != nil {
		return remote, err
	}
	if string(done) != doneWord {
		return remote, fmt.Errorf("the client said %q instead of %q; is it a pingpong?", done, doneWord)
	}
	if b.writeSettings(c) != nil {
		return remote, nil // it has hung up, as rdma-core's do
	}
	line, ok, err := readSettings(c)
	if err != nil || !ok {
		return remote, err
	}
	return remote, b.compare(line)
}

// writeDest sends the peer the numbers of this side, in one piece, because rdma-core's programs read only once.
func (b *bouncer) writeDest(w io.Writer) error {
	msg, err := oob.QPInfo{LID: b.own.LID, QPN: b.own.QPN, PSN: b.own.PSN, GID: b.own.GID}.AppendText(nil)
	if err != nil {
		return err
	}
	_, err = w.Write(append(msg, 0))
	return err
}

// readDest reads the peer's message.
func readDest(r io.Reader) (oob.QPInfo, error) {
	msg := make([]byte, len(destLayout))
	if _, err := io.ReadFull(r, msg); err != nil {
		return oob.QPInfo{}, err
	}
	head, ok := strings.CutSuffix(string(msg), "\x00")
	if !ok {
		return oob.QPInfo{}, fmt.Errorf("%q does not end in a NUL; is the peer on InfiniBand or RoCE too?", msg)
	}
	return oob.ParseQPInfo(head)
}

// writeSettings sends the line that only pingpongs of ours send.
func (b *bouncer) writeSettings(w io.Writer) error {
	line, err := oob.QPInfo{Settings: b.own.Settings}.AppendText(nil)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// readSettings reads that line. ok is false if the peer has hung up: it is
// a program of rdma-core, which does not send its settings.
func readSettings(c net.Conn) (line string, ok bool, err error) {
	var b [1]byte
	for len(line) < maxLine {
		if _, err := c.Read(b[:]); err != nil {
			if line == "" && !errors.Is(err, net.ErrClosed) { // the end or a reset; closed: our own doing
				return "", false, nil
			}
			return "", false, err
		}
		if b[0] == '\n' {
			return line, true, nil
		}
		line += string(b[:])
	}
	return "", false, fmt.Errorf("the peer's line of settings is over %d bytes; is it a cinnabar pingpong?", maxLine)
}

// compare names the settings that differ.
func (b *bouncer) compare(line string) error {
	in, err := oob.ParseQPInfo(line)
	if err != nil {
		return err
	}
	return oob.CompareSettings(b.own.Settings, in.Settings)
}
