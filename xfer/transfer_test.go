package xfer

import (
	"crypto/sha256"
	"fmt"
	"testing"

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
	{"basic without immediates", iwarp.Config{NoImmediates: true}, iwarp.Config{NoImmediates: true}, Basic, false},
	{"basic, client without immediates", iwarp.Config{NoImmediates: true}, iwarp.Config{}, Basic, false},
	{"basic, server without immediates", iwarp.Config{}, iwarp.Config{NoImmediates: true}, Basic, false},
	{"basic, passive side must wait", iwarp.Config{NoImmediates: true, NoPeerToPeer: true}, iwarp.Config{NoImmediates: true}, Basic, false},
	{"fast", iwarp.Config{}, iwarp.Config{}, Fast, false},
	{"fast without immediates", iwarp.Config{NoImmediates: true, NoPeerToPeer: true}, iwarp.Config{}, Fast, false},
	{"fast, exact statuses", iwarp.Config{ConfirmWrites: true}, iwarp.Config{ConfirmWrites: true}, Fast, false},
}

// Files of all sizes around the chunk arrive whole, whichever way they go.
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
				for side, r := range map[string]Result{"sender": res, "receiver": got} {
					if r.Size != int64(size) || r.Name != name || r.Protocol != w.protocol || r.Immediate != w.imm || r.Chunk != chunk || r.Chunks != int64(size+chunk-1)/chunk {
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
