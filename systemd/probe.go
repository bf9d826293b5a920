package systemd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"cinnabar"
)

// probeName is the name of an RPC that no engine serves. The network and the RPC layer of an engine answer a request for it with codes.NoEntry, without a handler.
const probeName = "cinnabar watchdog"

// Probe calls an engine of this process as a peer does. It has an engine of its own for that. Its methods are safe for concurrent use.
type Probe struct {
	client *cinnabar.Engine
	server *cinnabar.Endpoint
	call   *cinnabar.RPC[struct{}, struct{}]
}

// NewProbe returns a Probe of an engine that listens. The caller closes the Probe before the engine. ctx bounds the opening.
//
// The Probe calls the address of the engine that its peers call. So a Config.Advertise that this host cannot reach makes all checks fail, and so
// does a Config.Admit that refuses this process.
func NewProbe(ctx context.Context, e *cinnabar.Engine) (*Probe, error) {
	cfg := e.Config()
	address := e.Addr()
	address = address[strings.LastIndexByte(address, '#')+1:] // of an address with shared memory, the last part is that of the network
	protocol, _, _ := strings.Cut(address, ":")
	own := &cinnabar.Config{Token: cfg.Token, TLS: cfg.TLS, DialTLS: cfg.DialTLS, Device: cfg.Device,
		MaxRequest: cfg.MaxRequest, MaxResponse: cfg.MaxResponse, Checksums: cfg.Checksums, Progress: cfg.Progress,
		Firewalled: strings.HasPrefix(protocol, "ofi+tcp")} // because no process connects to a Probe
	if cfg.Advertise != "" {
		return newProbe(ctx, protocol, address, own)
	}
	return newProbe(ctx, beside(address), address, own)
}

func newProbe(ctx context.Context, local, address string, cfg *cinnabar.Config) (*Probe, error) {
	client, err := cinnabar.Open(ctx, local, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the engine of the watchdog: %w", err)
	}
	server, err := client.Lookup(address)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &Probe{client: client, server: server, call: cinnabar.NewRPC[struct{}, struct{}](probeName, cinnabar.WithFlavor(cinnabar.Mercury))}, nil
}

// beside returns the address to open for calls to an engine of this process: the protocol of its address and, on a network, its host.
func beside(address string) string {
	protocol, where, _ := strings.Cut(address, "://")
	host, _, err := net.SplitHostPort(where)
	if err != nil { // an address in shared memory
		return protocol
	}
	return protocol + "://" + net.JoinHostPort(host, "0")
}

// Check makes one round trip to the engine: over its network, its connections, and the layer that reads requests. It needs no worker of a
// handler pool, so an engine with busy handlers is alive. Any answer of the engine counts, such as a refused certificate. ctx bounds the call.
func (p *Probe) Check(ctx context.Context) error {
	_, err := p.call.Call(ctx, p.server, struct{}{})
	if err == nil || Answered(err) {
		return nil
	}
	return fmt.Errorf("the engine at %v does not answer calls of its own process: %w", p.server, err)
}

// Answered reports whether err, the error of a call or of a connection, shows that a process has answered at the other end: it has returned an error of
// its own or a certificate that this side refuses, or has refused the certificate of this side.
func Answered(err error) bool {
	if e, ok := errors.AsType[*cinnabar.Error](err); ok && e.Remote {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" // as crypto/tls names an alert of the peer
}

// Close ends the Probe, and checks under way.
func (p *Probe) Close() error { return p.client.Close() }
