package compare

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/cmd/cinnabar/internal/peerproc"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// peerCommand is the hidden sub-command of compare's peer.
const peerCommand = "compare-peer"

// NewPeer returns the hidden command that compare starts as its receiver.
func NewPeer(s cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    peerCommand,
		Short:  "The other half of compare, started by it",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return peerproc.Main(cmd.Context(), s, func(ctx context.Context, x *link.Exchange) (err error) {
				dev, err := cli.OpenDevice(ctx, "")
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, dev.Close()) }()
				return serve(ctx, dev, x)
			})
		},
	}
}

// sink is the receiving side of compare.
type sink struct {
	*link.Link
	x    *link.Exchange
	dev  *verbs.Device
	job  job
	data *verbs.MR
	tcp  net.Conn

	calls int64 // of the way under way
}

// serve connects to the parent and receives the data in every way, one after the other.
func serve(ctx context.Context, dev *verbs.Device, x *link.Exchange) (err error) {
	l, err := link.New(dev, link.Config{Sends: window, Receives: window})
	if err != nil {
		return err
	}
	k := &sink{Link: l, x: x, dev: dev}
	defer func() { err = errors.Join(err, k.Close(ctx)) }()
	if err := k.prepare(ctx); err != nil {
		return err
	}
	if err := k.meet(ctx); err != nil {
		return err
	}
	defer cli.Shut(k.tcp)
	defer cli.Interrupt(ctx, k.tcp)()
	for _, take := range []func(context.Context) error{k.takeTCP, k.takeWrite, k.takeSend} {
		if err := k.measure(ctx, take); err != nil {
			return err
		}
	}
	return nil
}

// prepare receives the job from the parent and registers the memory for it.
func (k *sink) prepare(ctx context.Context) (err error) {
	if err := k.x.Receive(ctx, &k.job); err != nil {
		return err
	}
	if err := k.job.check(); err != nil {
		return err
	}
	k.data, err = k.Alloc(k.job.memory(), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	return err
}

// meet accepts the parent's TCP connection and connects the queue pair.
func (k *sink) meet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, link.ExchangeTimeout)
	defer cancel()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for TCP: %w", err)
	}
	defer cli.Shut(l)
	defer cli.InterruptAccept(ctx, l)()
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		return err
	}
	if err := k.x.Send(answer{TCP: at}); err != nil {
		return err
	}
	if _, err := k.x.Connect(ctx, k.Link, oob.Config{Region: k.data.Region()}); err != nil {
		return err
	}
	if k.tcp, err = l.Accept(); err != nil {
		return fmt.Errorf("wait for the TCP connection: %w", cli.Reason(ctx, err))
	}
	return nil
}

// measure receives the data in one way by calling take, and sends the parent the costs of this side.
func (k *sink) measure(ctx context.Context, take func(context.Context) error) error {
	var s step
	if err := k.x.Receive(ctx, &s); errors.Is(err, io.EOF) { // the parent reports its own failure
		return cli.ErrParentEnded
	} else if err != nil {
		return err
	}
	clear(k.data.Bytes()) // so that the digest is that of this way alone
	k.calls = 0
	before, staged := readUsage(), stagedBytes(k.dev, stagedByReceiver)
	if err := take(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.Way, err)
	}
	if err := k.x.Receive(ctx, &s); err != nil {
		return err
	}
	return k.x.Send(report{
		Usage: readUsage().since(before), Calls: k.calls,
		Staged: stagedBytes(k.dev, stagedByReceiver) - staged, Digest: sha256.Sum256(k.data.Bytes()),
	})
}

// ready sends the parent the report after which it begins to send data.
func (k *sink) ready() error { return k.x.Send(report{Ready: true}) }

// takeTCP reads every piece into its place in the memory, and then sends one byte, which confirms that all pieces came.
func (k *sink) takeTCP(context.Context) error {
	if err := k.ready(); err != nil {
		return err
	}
	for n := range k.job.count() {
		off, size := k.job.piece(n)
		for b := k.data.Bytes()[off : off+size]; len(b) > 0; {
			got, err := k.tcp.Read(b)
			if err != nil {
				return fmt.Errorf("read piece %d: %w", n, err)
			}
			k.calls++
			b = b[got:]
		}
	}
	_, err := k.tcp.Write([]byte{1})
	return err
}

// takeWrite only calls ready, because RDMA writes place the data without the receiving program.
func (k *sink) takeWrite(context.Context) error { return k.ready() }

// takeSend posts receives for the first window pieces, and one more for each piece that came. It sends a credit after every creditStep
// pieces and after the last one, because the parent must not send a piece that finds no receive posted.
func (k *sink) takeSend(ctx context.Context) error {
	posted := int64(0)
	count := k.job.count()
	for ; posted < min(count, window); posted++ {
		if err := k.postPiece(posted); err != nil {
			return err
		}
	}
	if err := k.ready(); err != nil {
		return err
	}
	for n := int64(1); n <= count; n++ {
		k.calls++
		if _, err := k.Received(ctx, verbs.WCRecv); err != nil {
			return err
		}
		if posted < count {
			if err := k.postPiece(posted); err != nil {
				return err
			}
			posted++
		}
		if n%creditStep == 0 || n == count {
			if err := k.sendCredit(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// postPiece posts the receive of piece n.
func (k *sink) postPiece(n int64) error {
	k.calls++
	off, size := k.job.piece(n)
	return k.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{k.data.SGE(off, size)}})
}

// sendCredit sends the parent an empty message, which permits it to send creditStep more pieces.
func (k *sink) sendCredit(ctx context.Context) error {
	k.calls++
	if err := k.Post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled}); err != nil {
		return err
	}
	return k.Sent(ctx, 1)
}
