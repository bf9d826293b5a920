package native_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/testproc"
	"cinnabar/native"
	"cinnabar/verbs/auto"
)

// peers are the processes at the other end of tests.
var peers = map[string]func(args []string) error{
	"chat server": func(args []string) error {
		e, err := peerEngine(args[0], cinnabar.Listen)
		if err != nil {
			return err
		}
		if err := chat.Handle(e, echoStream[int64]); err != nil {
			return err
		}
		fmt.Println("address", e.Addr())
		<-testproc.InputClosed()
		return nil
	},
	"chat client": func(args []string) error {
		e, err := peerEngine(args[0], cinnabar.Open)
		if err != nil {
			return err
		}
		ep, err := e.Lookup(args[1])
		if err != nil {
			return err
		}
		for range 10 {
			s, err := chat.Open(context.Background(), ep)
			if err != nil {
				return err
			}
			go func() { _ = numbers(context.Background(), s, 1<<40) }() // until the process is killed
		}
		<-testproc.InputClosed()
		return nil
	},
}

// peerEngine opens an engine of a process that ends by being killed, and with it its device.
func peerEngine(network string, open func(context.Context, string, *cinnabar.Config) (*cinnabar.Engine, error)) (*cinnabar.Engine, error) {
	var cfg cinnabar.Config
	if network[:indexOf(network)] == "ofi+verbs" {
		dev, err := auto.Software(nil)
		if err != nil {
			return nil, err
		}
		cfg.Device = dev
	}
	return open(context.Background(), network, &cfg)
}

// TestStreamServerKilled kills the server of a stream in its midst.
// parity: A05
func TestStreamServerKilled(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		p := testproc.Start(t, testproc.Command{Role: "chat server", Args: []string{network}, Limit: testLimit})
		ep, err := open(t, network, nil).Lookup(p.Stdout.Expect("^address (.+)$")[1])
		must(t, err)
		ctx := patient(t)
		s := openChat(t, ctx, ep)
		sent := make(chan error, 1)
		go func() { sent <- numbers(ctx, s, 1<<40) }()
		n := 0
		for _, err := range s.Receive(ctx) {
			if err != nil {
				wantError(t, err, codes.HostUnreach)
				break
			}
			if n++; n == 1000 {
				p.Kill()
			}
		}
		wantError(t, soon(t, "sender", sent), codes.HostUnreach)
		wantError(t, s.Wait(ctx), codes.HostUnreach)
	})
}

// TestStreamClientKilled kills a client with ten streams. Their handlers end, and nothing of them is left.
// parity: A05
func TestStreamClientKilled(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		server := listen(t, network, nil)
		began, ended := make(chan struct{}, 10), make(chan error, 10)
		must(t, chat.Handle(server, func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
			began <- struct{}{}
			var last error
			for _, err := range s.Receive(ctx) {
				last = err
			}
			ended <- last
			return last
		}))
		p := testproc.Start(t, testproc.Command{Role: "chat client", Args: []string{network, server.Addr()}, Limit: testLimit})
		for range 10 {
			soon(t, "handler", began)
		}
		p.Kill()
		for range 10 {
			if err := soon(t, "end of a handler", ended); !errors.Is(err, context.Canceled) {
				t.Errorf("a handler receives %v", err)
			}
		}
		waitUntil(t, "no request is left", func() bool { return server.Stats().RequestsActive == 0 })
	})
}
