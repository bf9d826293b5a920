package xfer

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs/iwarp"
)

// way is one of the forms in which a file can cross.
type way struct {
	name     string
	client   iwarp.Config
	server   iwarp.Config
	protocol Protocol
	imm      bool
}

var ways = []way{
	{"basic", iwarp.Config{}, iwarp.Config{}, Basic, true},
	{"basic, no peer-to-peer", iwarp.Config{NoPeerToPeer: true}, iwarp.Config{}, Basic, true},
	{"basic without immediates", iwarp.Config{NoImmediates: true}, iwarp.Config{NoImmediates: true}, Basic, false},
	{"basic, client without immediates", iwarp.Config{NoImmediates: true}, iwarp.Config{}, Basic, false},
	{"basic, server without immediates", iwarp.Config{}, iwarp.Config{NoImmediates: true}, Basic, false},
	{"basic, passive side must wait", iwarp.Config{NoImmediates: true, NoPeerToPeer: true}, iwarp.Config{NoImmediates: true}, Basic, false},
	{"fast", iwarp.Config{}, iwarp.Config{}, Fast, false},
	{"fast without immediates", iwarp.Config{NoImmediates: true, NoPeerToPeer: true}, iwarp.Config{}, Fast, false},
	{"fast, exact statuses", iwarp.Config{ConfirmWrites: true}, iwarp.Config{ConfirmWrites: true}, Fast, false},
}

// Files of all sizes around the chunk arrive whole, whichever way they go.
// parity: B10 B14
func TestSizes(t *testing.T) {
	const chunk = 64 << 10
	data := noise(3*chunk + 1)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			ctx := testContext(t)
			srv := serve(t, device(t, w.server), Receiver{}, DirOptions{})
			dev := device(t, w.client)
			snd := Sender{Protocol: w.protocol, Chunk: chunk}
			for _, size := range []int{0, 1, 255, chunk - 1, chunk, chunk + 1, 2 * chunk, 3*chunk + 1} {
				name := fmt.Sprintf("file-%d", size)
				res, err := snd.Send(ctx, dev, srv.addr, sourceOf(name, data[:size]))
				if err != nil {
					t.Fatal(err)
				}
				got, err := srv.outcome(ctx)
				if err != nil {
					t.Fatal(err)
				}
				srv.wantFile(name, data[:size])
				granted := chunk
				if size < minChunk { // buffers are no larger than the file needs
					granted = minChunk
				}
				for side, r := range map[string]Result{"sender": res, "receiver": got} {
					if r.Size != int64(size) || r.Name != name || r.Protocol != w.protocol || r.Immediate != w.imm || r.Chunk != granted || r.Chunks != int64(size+chunk-1)/chunk {
						t.Errorf("size %d, %s: %+v", size, side, r)
					}
					if w.protocol == Fast && r.Sum != sha256.Sum256(data[:size]) {
						t.Errorf("size %d, %s: digest %x", size, side, r.Sum)
					}
				}
			}
		})
	}
}

// A thousand chunks: the digest is equal and the number of messages is that of the
// protocol, no more.
// parity: B09
func TestMessageCount(t *testing.T) {
	const chunks = 1000
	data := noise(chunks * minChunk)
	for p, want := range map[Protocol]map[string]int{
		Basic: {"client write": chunks + 2, "server send MR": 1, "server send READY": chunks + 1, "server send DONE": 1, "server store": chunks},
		Fast: {"client write": chunks, "client send OPEN": 1, "client send CHUNK": chunks, "client send END": 1,
			"server send LAYOUT": 1, "server send DONE": 1, "server store": chunks},
	} {
		ctx := testContext(t)
		var h history
		srv := serve(t, device(t, iwarp.Config{}), Receiver{Trace: h.tracer(true)}, DirOptions{})
		s := Sender{Protocol: p, Chunk: minChunk, Trace: h.tracer(false)}
		res, err := s.Send(ctx, device(t, iwarp.Config{}), srv.addr, sourceOf("f", data))
		if err != nil {
			t.Fatal(err)
		}
		srv.stop()
		srv.wantFile("f", data)
		got := map[string]int{}
		for _, st := range h.steps {
			side := "client "
			if st.server {
				side = "server "
			}
			switch {
			case st.Op == OpWrite || st.Op == OpStore:
				got[side+st.Op.String()]++
			case st.Op == OpSend && st.Message != "CREDIT":
				got[side+"send "+st.Message]++
			case st.Op == OpSend:
				if got["credits"]++; got["credits"] > chunks {
					t.Errorf("%v: more credits than chunks", p)
				}
			}
		}
		delete(got, "credits")
		if d := cmp.Diff(got, want); d != "" {
			t.Errorf("%v: %s", p, d)
		}
		checkHistory(t, &h, res)
	}
}
