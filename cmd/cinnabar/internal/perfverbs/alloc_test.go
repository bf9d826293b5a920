//go:build !race

package perfverbs

import (
	"context"
	"testing"

	"cinnabar/verbs"
)

// Posting and polling allocate nothing, on either side, whatever is measured.
func TestAllocations(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      options
		inline int
		size   int64
	}{
		{"write", options{op: opWrite}, 0, 4096},
		{"write-imm", options{op: opWriteImm}, 0, 4096},
		{"read", options{op: opRead}, 0, 4096},
		{"send", options{op: opSend}, 0, 4096},
		{"send inline", options{op: opSend}, 64, 64},
		{"atomic", options{op: opAtomic}, 0, wordLen},
		{"write latency", options{op: opWrite, latency: true}, 0, 64},
		{"write latency inline", options{op: opWrite, latency: true}, 64, 64},
		{"send latency", options{op: opSend, latency: true}, 64, 64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.inline, tt.o.sizes, tt.o.depth, tt.o.timeout = tt.inline, []int64{tt.size}, 16, defaultTimeout
			p := newPair(t, &tt.o)
			step := p.pumpStep
			if tt.o.latency {
				step = p.bounceStep
			}
			round := func() {
				if err := step(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for range 40 {
				round()
			}
			if n := testing.AllocsPerRun(200, round); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// pumpStep fills the client's send queue once, and waits until it is empty and the server has taken what it receives.
// Both sides poll in turn.
func (p *pair) pumpStep(context.Context) error {
	goal := p.client.sender.posted + uint64(p.client.o.depth)
	for p.client.sender.done < goal || p.client.o.op.received() && p.server.received < goal {
		if err := p.client.sender.fill(goal); err != nil {
			return err
		}
		if err := p.pollBoth(); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) pollBoth() error {
	if err := p.client.poll(); err != nil {
		return err
	}
	return p.server.poll()
}

// bounceStep makes a round trip.
func (p *pair) bounceStep(ctx context.Context) error {
	for _, way := range [][2]*side{{p.client, p.server}, {p.server, p.client}} {
		if err := p.message(ctx, way[0], way[1]); err != nil {
			return err
		}
	}
	return nil
}

// message has one side send its message and the other take it, which is there by then.
func (p *pair) message(ctx context.Context, from, to *side) error {
	arrived := func() bool { return to.lastByte() == byte(to.heard+1) }
	send, await := from.writeNext, to.awaitWrite
	if from.sender.group[0].Op == verbs.OpSend {
		arrived = func() bool { return to.received > to.heard }
		send, await = from.sendNext, to.awaitMessage
	}
	if err := send(ctx); err != nil {
		return err
	}
	for !arrived() || from.sender.done < from.reading {
		if err := p.pollBoth(); err != nil {
			return err
		}
	}
	return await(ctx)
}
