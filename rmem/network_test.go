package rmem

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"cinnabar/internal/devicetest"
	"cinnabar/rmem/internal/link"
	"cinnabar/verbs"
)

// VerbsServer is a verbsrmem.Server.
type VerbsServer interface {
	Addr() netip.AddrPort
	Revoke(id uint64) bool
	Stats() Stats
	Close() error
}

// ListenVerbs and DialVerbs are functions of rmem/verbsrmem, which imports this package, so only the external tests can import
// it: they set both.
var (
	ListenVerbs func(dev *verbs.Device, addr netip.AddrPort, cfg Config) (VerbsServer, error)
	DialVerbs   func(ctx context.Context, dev *verbs.Device, addr netip.AddrPort) (*Client, error)
)

// lenders is a network that keeps the lender which it made last, because tests look into those of servers over verbs.
type lenders struct {
	network
	listening sync.Mutex // held from before a server is made until its lender is taken
	last      *lender
}

var made = &lenders{}

func init() { link.Rmem = made }

func (m *lenders) NewLender(cfg Config, register func([]byte) link.Memory) (link.Lender[Stats], Config, error) {
	l, cfg, err := m.network.NewLender(cfg, register)
	if err == nil {
		m.last = &l.(*networkLender).lender
	}
	return l, cfg, err
}

// listenVerbs makes a server over verbs, which the caller closes, and returns its lender too.
func listenVerbs(t testing.TB, dev *verbs.Device, addr netip.AddrPort, cfg Config) (VerbsServer, *lender) {
	t.Helper()
	made.listening.Lock()
	defer made.listening.Unlock()
	s, err := ListenVerbs(dev, addr, cfg)
	must(t, err)
	return s, made.last
}

// serveVerbs makes a server over verbs, and returns its lender and its device too.
func serveVerbs(t testing.TB, cfg Config) (VerbsServer, *lender, *verbs.Device) {
	t.Helper()
	dev := devicetest.MustOpen(t)
	s, l := listenVerbs(t, dev, devicetest.MustAddr(t, dev), cfg)
	closing(t, s)
	return s, l, dev
}

func dialVerbs(t testing.TB, s VerbsServer, dev *verbs.Device) *Client {
	t.Helper()
	c, err := DialVerbs(devicetest.Context(t), dev, s.Addr())
	must(t, err)
	closing(t, c)
	return c
}
