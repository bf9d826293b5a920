//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar"
)

// TestMercuryOwnClients has Mercury's own tests of calls and transfers, hg_test_rpc and hg_test_bulk, use a server in Go.
// parity(peer): H43 H47 H84
func TestMercuryOwnClients(t *testing.T) {
	programs := []string{installedProgram(t, "hg_test_rpc"), installedProgram(t, "hg_test_bulk")}
	for _, path := range programs {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			e, err := cinnabar.Listen(t.Context(), network, configured(t, nil))
			must(t, err)
			t.Cleanup(func() { closeEngine(t, e) })
			serveMercuryOwn(t, e)
			hostfile := filepath.Join(t.TempDir(), "port.cfg")
			must(t, os.WriteFile(hostfile, []byte(e.Addr()+"\n"), 0o600))
			p := startFile(t, path, append(mercuryOptions(), "-f", hostfile)...)
			if err := p.Wait(); err != nil || strings.Contains(p.log(), "FAILED") || !strings.Contains(p.log(), "PASSED") {
				t.Errorf("%s ends with %v\n%s", name, err, p.log())
			}
		})
	}
}

// mercuryOptions are the options for the network of programs that come with Mercury.
func mercuryOptions() []string {
	protocol, host, _ := strings.Cut(strings.TrimPrefix(network, "ofi+"), "://")
	return []string{"-c", "ofi", "-p", protocol, "-H", host}
}

// serveMercuryOwn serves the procedures of hg_test_server.
func serveMercuryOwn(t *testing.T, e *cinnabar.Engine) {
	t.Helper()
	plain := cinnabar.WithFlavor(cinnabar.Mercury)
	self, err := e.Lookup(e.Addr())
	must(t, err)
	nothing := func(context.Context, none) (none, error) { return none{}, nil }
	bound := cinnabar.NewRPC[writeIn, writeOut]("hg_test_bulk_bind_write", plain)
	must(t,
		cinnabar.NewRPC[none, none]("hg_test_rpc_null", plain).Handle(e, nothing),
		cinnabar.NewRPC[none, none]("hg_test_finalize", plain).Handle(e, nothing),
		cinnabar.NewRPC[openIn, openOut]("hg_test_rpc_open", plain).Handle(e, func(_ context.Context, in openIn) (openOut, error) {
			return openOut{0, int32(in.Cookie)}, nil
		}),
		cinnabar.NewOneWay[openIn]("hg_test_rpc_open_no_resp", plain).Handle(e, func(context.Context, openIn) error { return nil }),
		cinnabar.NewRPC[string, none]("hg_test_string", plain).Handle(e, func(context.Context, string) (none, error) { return none{}, nil }),
		cinnabar.NewOneWay[string]("hg_test_string_oneway", plain).Handle(e, func(context.Context, string) error { return nil }),
		cinnabar.NewRPC[none, string]("hg_test_overflow", plain).Handle(e, func(context.Context, none) (string, error) {
			return strings.Repeat("h", 2*(4096-16)), nil // twice the payload of a message: the client checks the length
		}),
		cinnabar.NewRPC[none, none]("hg_test_cancel_rpc", plain).Handle(e, func(ctx context.Context, _ none) (none, error) {
			<-ctx.Done() // the client gives up, which a server does not learn
			return none{}, context.Cause(ctx)
		}),
		cinnabar.NewRPC[writeIn, writeOut]("hg_test_bulk_write", plain).Handle(e, func(ctx context.Context, in writeIn) (writeOut, error) {
			return in.pull(ctx, e, cinnabar.InfoFrom(ctx).Peer)
		}),
		bound.Handle(e, func(ctx context.Context, in writeIn) (writeOut, error) {
			owner, err := in.Bulk.Owner(e)
			if err != nil {
				return writeOut{}, err
			}
			return in.pull(ctx, e, owner)
		}),
		cinnabar.NewRPC[writeIn, writeOut]("hg_test_bulk_bind_forward", plain).Handle(e, func(ctx context.Context, in writeIn) (writeOut, error) {
			return bound.Call(ctx, self, in)
		}),
	)
}

// pull pulls memory of owner as hg_test_server does, and checks its bytes: byte i of that memory must be i modulo 256.
func (in writeIn) pull(ctx context.Context, e *cinnabar.Engine, owner *cinnabar.Endpoint) (out writeOut, err error) {
	if in.Size == 0 {
		return out, nil
	}
	memory := make([]byte, in.TargetOffset+in.Size)
	local, err := e.Expose(cinnabar.WriteOnly, memory)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	n, err := in.Bulk.On(owner).Slice(int64(in.OriginOffset), int64(in.Size)).Pull(ctx, local.Slice(int64(in.TargetOffset), int64(in.Size)))
	if err != nil {
		return out, err
	}
	for i, b := range memory[in.TargetOffset:] {
		if want := byte(in.OriginOffset) + byte(i); b != want {
			return out, fmt.Errorf("byte %d is %d instead of %d", i, b, want)
		}
	}
	return writeOut{uint64(n)}, nil
}
