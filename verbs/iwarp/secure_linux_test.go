package iwarp_test

import (
	"bytes"
	"testing"

	"cinnabar/verbs"
)

// TestTLSTruncatedMapping registers a mapped file and truncates it. Over TLS this process accesses the memory itself. An access to it, by the
// peer or by the program, must end the connection and not the process.
func TestTLSTruncatedMapping(t *testing.T) {
	access := verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic
	for name, do := range map[string]func(t *testing.T, a, b *side, mr *verbs.MR){
		"write of the peer": func(t *testing.T, a, _ *side, mr *verbs.MR) {
			a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{a.region(t, 1000).SGE(0, 1000)}, Remote: mr.Remote()})
		},
		"read of the peer": func(t *testing.T, a, _ *side, mr *verbs.MR) {
			a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{a.region(t, 1000).SGE(0, 1000)}, Remote: mr.Remote()})
		},
		"receive": func(t *testing.T, a, b *side, mr *verbs.MR) {
			b.recv(t, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{mr.SGE(0, 1000)}})
			a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: []verbs.SGE{a.region(t, 1000).SGE(0, 1000)}})
		},
		"own send": func(t *testing.T, _, b *side, mr *verbs.MR) {
			b.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, 1000)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := securePair(t)
			mem, truncate := mapping(t)
			mr, err := b.pd.RegMR(mem, access)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := mr.Close(); err != nil {
					t.Error(err)
				}
			}()
			truncate()
			do(t, a, b, mr)
			<-b.conn.Done()
			if b.conn.Err() == nil {
				t.Error("the connection has no cause")
			}
		})
	}
}

// TestTLSTruncatedMappingBehindOthers truncates a mapped file whose bytes lie behind those of other messages in one batch. TLS has encrypted a part of
// these others when it finds the fault. The peer must get the bytes of the messages before the fault, each once.
func TestTLSTruncatedMappingBehindOthers(t *testing.T) {
	cfg := secure(t)
	cfg.MaxULPDU = 32 << 10
	a, b := newPair(t, cfg, cfg)
	const long, short = 150_000, 30_000 // the first piece of TLS ends in the middle of a frame of the former
	src, last, dst, in := a.region(t, long), a.region(t, short), b.region(t, long), b.region(t, short)
	fill(last.Bytes(), 7)
	mem, truncate := mapping(t)
	gone, err := a.pd.RegMR(mem, verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := gone.Close(); err != nil {
			t.Error(err)
		}
	}()
	b.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{in.SGE(0, short)}})
	truncate()
	a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, long)}, Remote: dst.Remote()},
		verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{last.SGE(0, short)}},
		verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: []verbs.SGE{gone.SGE(0, 1000)}})
	b.want(t, 1, verbs.WCRecv, verbs.StatusSuccess)
	if !bytes.Equal(in.Bytes(), last.Bytes()) {
		t.Error("the peer has received other bytes than those that were sent")
	}
	<-a.conn.Done()
	<-b.conn.Done()
}
