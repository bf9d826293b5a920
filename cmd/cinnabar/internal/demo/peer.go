package demo

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/cmd/cinnabar/internal/peerproc"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// peerCommand is the hidden sub-command of the demonstration's peer.
const peerCommand = "demo-peer"

// NewPeer returns the hidden command that demo starts as its other side.
func NewPeer(s cli.Streams) *cobra.Command {
	var device string
	var autoSM bool
	cmd := &cobra.Command{
		Use:    peerCommand,
		Short:  "The other half of demo, started by it",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return peerproc.Main(cmd.Context(), s, func(ctx context.Context, x *link.Exchange) (err error) {
				dev, err := cli.OpenDevice(ctx, device)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, dev.Close()) }()
				return serve(ctx, dev, autoSM, x)
			})
		},
	}
	cli.DeviceFlag(cmd.Flags(), &device)
	cli.AutoSMFlag(cmd.Flags(), &autoSM, "open shared memory beside the network")
	return cmd
}

// peer is the passive side of the demonstration.
type peer struct {
	*talker
	src    source
	data   *verbs.MR // the memory for the parent: a round of data, and two words for atomics
	autoSM bool      // as in session

	sum    hash.Hash     // of the data of the operation under way
	reader io.ReadCloser // the source, while reads are under way
}

// serve receives the description of the data, connects, and does its part until the
// parent says bye.
func serve(ctx context.Context, dev *verbs.Device, autoSM bool, x *link.Exchange) (err error) {
	t, err := newTalker(dev)
	if err != nil {
		return err
	}
	p := &peer{talker: t, autoSM: autoSM, sum: sha256.New()}
	defer func() { err = errors.Join(err, p.closeReader(), p.Close(ctx)) }()
	if err := x.Receive(ctx, &p.src); err != nil {
		return err
	}
	const all = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic
	if p.data, err = p.Alloc(roundLen+words*wordLen, all); err != nil {
		return err
	}
	if err := p.listen(); err != nil {
		return err
	}
	at, err := loopbackOf(dev)
	if err != nil {
		return err
	}
	if _, err := x.Connect(ctx, p.Link, oob.Config{Region: p.data.Region(), Settings: settings(), Listen: at}); err != nil {
		return err
	}
	for {
		m, err := p.hear(ctx)
		if link.Ended(err) { // without a bye: the parent has failed, and reports that itself
			return cli.ErrParentEnded
		}
		if err != nil {
			return err
		}
		if m.kind == kindBye {
			if err := p.files(ctx, dev, x); err != nil {
				return err
			}
			return p.calls(ctx, dev, x)
		}
		if err := p.handle(ctx, m); err != nil {
			return fmt.Errorf("%s: %w", m.op, err)
		}
	}
}

// handle executes one message, and answers it.
func (p *peer) handle(ctx context.Context, m message) error {
	switch m.kind {
	case kindBegin:
		if m.value > roundLen {
			return fmt.Errorf("the parent begins a round of %d bytes, over the agreed %d", m.value, roundLen)
		}
		return p.round(ctx, m.op, int(m.value))
	case kindSum:
		answer := message{kind: kindSum, op: m.op, digest: [32]byte(p.sum.Sum(nil))}
		p.sum.Reset()
		return errors.Join(p.closeReader(), p.answer(ctx, answer))
	case kindWord:
		if m.value >= words {
			return fmt.Errorf("the parent asks for word %d of %d", m.value, words)
		}
		word := p.data.Bytes()[wordOffset(int(m.value)):]
		return p.answer(ctx, message{kind: kindWord, value: binary.NativeEndian.Uint64(word)})
	case kindReady, kindMoved, kindArrived, kindBye:
	}
	return fmt.Errorf("the parent said %q, which is not its turn to say", m.kind)
}

// answer makes room for the parent's next message and sends m.
func (p *peer) answer(ctx context.Context, m message) error {
	if err := p.listen(); err != nil {
		return err
	}
	return p.say(ctx, m)
}

// round takes part in moving n bytes.
func (p *peer) round(ctx context.Context, op operation, n int) error {
	switch op {
	case opRead:
		return p.offerData(ctx, n)
	case opSendReceive, opWriteImm:
		if err := p.postChunks(op, n); err != nil {
			return err
		}
	case opWrite: // nothing to do: that is the point
	default:
		return errors.New("unknown operation")
	}
	if err := p.answer(ctx, message{kind: kindReady, op: op}); err != nil {
		return err
	}
	if op != opWrite {
		if err := p.takeChunks(ctx, op, n); err != nil {
			return err
		}
	}
	if _, err := p.expect(ctx, kindMoved); err != nil {
		return err
	}
	if err := p.answer(ctx, message{kind: kindArrived, op: op}); err != nil {
		return err
	}
	p.sum.Write(p.data.Bytes()[:n]) // a hash never fails
	return nil
}

// offerData puts the next n bytes of the source where the parent reads them.
func (p *peer) offerData(ctx context.Context, n int) (err error) {
	if p.reader == nil {
		if p.reader, err = p.src.open(); err != nil {
			return err
		}
	}
	b := p.data.Bytes()[:n]
	if err := p.src.fill(p.reader, b); err != nil {
		return err
	}
	p.sum.Write(b)
	return p.answer(ctx, message{kind: kindReady, op: opRead})
}

// postChunks posts one receive for each operation of the round. A write with
// immediate brings its own address, so its receive has no memory.
func (p *peer) postChunks(op operation, n int) error {
	var wrs []verbs.RecvWR
	for off, size := range chunks(n, chunkLen) {
		wr := verbs.RecvWR{ID: uint64(size)}
		if op == opSendReceive {
			wr.SGL = []verbs.SGE{p.data.SGE(off, size)}
		}
		wrs = append(wrs, wr)
	}
	return p.PostRecv(wrs...)
}

// takeChunks waits for those receives and compares their sizes with the agreed
// ones.
func (p *peer) takeChunks(ctx context.Context, op operation, n int) error {
	want := verbs.WCRecv
	if op == opWriteImm {
		want = verbs.WCRecvRDMAImm
	}
	for off, size := range chunks(n, chunkLen) {
		wc, err := p.Received(ctx, want)
		if err != nil {
			return fmt.Errorf("chunk at %d: %w", off, err)
		}
		if got := wc.Len; op == opSendReceive && int(got) != size {
			return fmt.Errorf("chunk at %d has %d bytes instead of %d", off, got, size)
		}
		if op == opWriteImm && int(wc.Imm) != size {
			return fmt.Errorf("chunk at %d came with immediate data %d instead of %d", off, wc.Imm, size)
		}
	}
	return nil
}

// closeReader ends a pass over the source.
func (p *peer) closeReader() error {
	if p.reader == nil {
		return nil
	}
	err := p.reader.Close()
	p.reader = nil
	return err
}
