package iwarp_test

import (
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
