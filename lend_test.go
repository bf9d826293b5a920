package cinnabar

import (
	"bytes"
	"context"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/tlstest"
)

type lentIn struct {
	Call uint32
	Data []byte `proc:"counted=uint64"`
	Tail string
}

// TestLentArgumentsOfEndedCalls changes large arguments as soon as Call has returned, also when the context has ended while the server was fetching
// them. The server gets the arguments of the call, because the engine makes a copy then.
func TestLentArgumentsOfEndedCalls(t *testing.T) {
	for _, network := range []string{"ofi+tcp", "ofi+tcps"} {
		t.Run(network, func(t *testing.T) {
			cfg := &Config{}
			if network == "ofi+tcps" {
				cfg.TLS = tlstest.NewCA(t).Local(t)
			}
			server, err := Listen(t.Context(), network+"://127.0.0.1", cfg)
			must(t, err)
			t.Cleanup(func() { must(t, server.Close()) })
			client, err := Open(t.Context(), network+"://127.0.0.1", cfg)
			must(t, err)
			t.Cleanup(func() { must(t, client.Close()) })
			to, err := client.Lookup(server.Addr())
			must(t, err)

			const calls, size = 60, 3 << 20
			served := make(chan uint32, calls)
			rpc := NewRPC[lentIn, struct{}]("lent")
			must(t, rpc.Handle(server, func(_ context.Context, in lentIn) (struct{}, error) {
				if in.Tail != "tail" || !bytes.Equal(in.Data, bytes.Repeat([]byte{byte(in.Call)}, size)) {
					t.Errorf("call %d: the arguments are not those of the call", in.Call)
				}
				served <- in.Call
				return struct{}{}, nil
			}))
			data := make([]byte, size)
			ended, whole := 0, 0
			for i := range uint32(calls) {
				for j := range data {
					data[j] = byte(i)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if i > 0 && i < calls-1 { // the first call finds the layout of the peer's headers, and the last shows that the connection lives
					ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*100*time.Microsecond)
				}
				_, err := rpc.Call(ctx, to, lentIn{i, data, "tail"})
				cancel()
				clear(data) // while the server may still fetch
				switch {
				case err == nil:
					whole++
				case codeOf(err) == codes.Timeout:
					ended++
				default:
					t.Fatal(err)
				}
			}
			for last := false; !last; {
				last = <-served == calls-1
			}
			t.Logf("%d calls ended early, and %d did not", ended, whole)
			if whole < 2 {
				t.Error("the first or the last call has failed")
			}
		})
	}
}

// TestLentArgumentsToOneself calls the own address, where nothing is lent.
func TestLentArgumentsToOneself(t *testing.T) {
	e, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", nil)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	rpc := NewRPC[lentIn, lentIn]("lent to oneself")
	must(t, rpc.Handle(e, func(_ context.Context, in lentIn) (lentIn, error) { return in, nil }))
	to, err := e.Lookup(e.Addr())
	must(t, err)
	in := lentIn{7, bytes.Repeat([]byte{7}, 1<<20), "tail"}
	out, err := rpc.Call(t.Context(), to, in)
	must(t, err)
	clear(in.Data)
	if out.Call != 7 || out.Tail != "tail" || !bytes.Equal(out.Data, bytes.Repeat([]byte{7}, 1<<20)) {
		t.Error("other results come back")
	}
}
