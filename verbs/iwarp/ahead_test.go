package iwarp_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// aheadOp is an operation of the sender in TestReadAhead.
type aheadOp struct {
	op   verbs.Opcode
	off  int // in both memories
	size int
}

// TestReadAhead sends runs of small messages, with operations of other kinds and sizes among them, while the receiver does not poll. The
// receiver then finds all of them, in order and with their bytes.
func TestReadAhead(t *testing.T) {
	const run, burst, room = 20, 40, 1024
	for _, crc := range []bool{true, false} {
		cfg := iwarp.Config{NoCRC: !crc}
		a, b := newPair(t, cfg, cfg)
		src, dst, target := a.region(t, 64<<10), b.region(t, burst*room), b.region(t, 64<<10)
		fill(src.Bytes(), 7)
		rnd := rand.New(rand.NewPCG(1, 2))
		for round := range 40 {
			clear(dst.Bytes())
			var recvs []verbs.RecvWR
			for i := range burst {
				recvs = append(recvs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(i*room, room)}})
			}
			b.recv(t, recvs...)
			var ops []aheadOp
			for sends := 0; sends < burst; {
				o := aheadOp{op: verbs.OpSend, off: rnd.IntN(room), size: 64}
				if kind := rnd.IntN(20); sends >= run && kind == 0 {
					o.op, o.size = verbs.OpWrite, 1+rnd.IntN(40<<10)
				} else if sends >= run && kind < 4 {
					o.size = 1 + rnd.IntN(room)
				}
				if o.op == verbs.OpSend {
					sends++
				}
				ops = append(ops, o)
			}
			clear(target.Bytes())
			var wrs []verbs.SendWR
			for i, o := range ops {
				wr := verbs.SendWR{ID: uint64(i), Op: o.op, SGL: []verbs.SGE{src.SGE(o.off, o.size)}}
				if o.op == verbs.OpWrite {
					wr.Remote = target.RemoteAt(o.off)
				}
				wrs = append(wrs, wr)
			}
			wrs[len(wrs)-1].Flags = verbs.Signaled
			a.send(t, wrs...)
			a.want(t, uint64(len(wrs)-1), verbs.WCSend, verbs.StatusSuccess)
			n := 0
			for _, o := range ops {
				if o.op == verbs.OpWrite {
					continue
				}
				spin(t, b, uint64(n))
				if got, want := dst.Bytes()[n*room:][:o.size], src.Bytes()[o.off:][:o.size]; !bytes.Equal(got, want) {
					t.Fatalf("round %d, crc %t: message %d of %d bytes differs", round, crc, n, o.size)
				}
				n++
			}
			for i, o := range ops { // all writes put the same bytes to the same place
				if o.op == verbs.OpWrite && !bytes.Equal(target.Bytes()[o.off:][:o.size], src.Bytes()[o.off:][:o.size]) {
					t.Fatalf("round %d, crc %t: operation %d, a write of %d bytes, differs", round, crc, i, o.size)
				}
			}
		}
	}
}

// TestReadAheadCalls counts the system calls by which small messages are read that have come together.
func TestReadAheadCalls(t *testing.T) {
	const rounds, burst, size = 20, 32, 64
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := a.region(t, size), b.region(t, burst*size)
	for range rounds {
		for i := range burst {
			b.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(i*size, size)}})
		}
		var wrs []verbs.SendWR
		for i := range burst {
			wrs = append(wrs, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(0, size)}})
		}
		wrs[burst-1].Flags = verbs.Signaled
		a.send(t, wrs...)
		a.want(t, burst-1, verbs.WCSend, verbs.StatusSuccess)
		for i := range burst {
			spin(t, b, uint64(i))
		}
	}
	// Without reading ahead there would be at least one system call for each message. The counter leaves out calls that read nothing.
	if calls := b.dev.Stats()["rx_calls"]; calls > rounds*burst/2 {
		t.Errorf("%d messages in %d bursts were read by %d system calls", rounds*burst, rounds, calls)
	}
}
