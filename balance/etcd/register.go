package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"cinnabar/balance"
	"cinnabar/codes"
)

// defaultTTL is the ttl of Register if it is 0.
const defaultTTL = 15 * time.Second

// Registration keeps a server under a prefix, with a goroutine and a lease, until Close.
type Registration struct {
	client *clientv3.Client
	log    *slog.Logger
	key    string
	value  string
	ttl    int64 // in seconds
	cancel context.CancelFunc
	wg     sync.WaitGroup
	lease  clientv3.LeaseID // the goroutine's; 0: none
}

// Register puts a server under cfg.Prefix, where a [Resolver] finds it, and keeps it there: etcd removes the key at most ttl after the process has ended; 0: 15 s.
// ttl is rounded up to seconds. If etcd loses the lease, because it could not be reached for longer than ttl, the key is put again. Register returns when the
// key is there, or with an error. A server that shuts down calls Close first.
func Register(ctx context.Context, cfg *Config, a balance.Address, ttl time.Duration) (*Registration, error) {
	switch {
	case cfg == nil || cfg.Client == nil:
		return nil, fmt.Errorf("etcd: %w: no Client given", codes.InvalidArg)
	case cfg.Prefix == "" || a.Addr == "" || ttl < 0:
		return nil, fmt.Errorf("etcd: %w: Prefix %q, address %q and time %v; none may be empty, or less than 0", codes.InvalidArg, cfg.Prefix, a.Addr, ttl)
	}
	value, err := json.Marshal(entry{a.Addr, a.Provider})
	if err != nil {
		return nil, err
	}
	ttl = cmp.Or(ttl, defaultTTL)
	g := &Registration{
		client: cfg.Client, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), key: cfg.Prefix + a.String(), value: string(value),
		ttl: int64((ttl + time.Second - 1) / time.Second),
	}
	if err := g.put(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("etcd: register %s: %w", a, err), g.revoke())
	}
	keep, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.wg.Go(func() { g.keep(keep) })
	return g, nil
}

// put puts the key with a new lease.
func (g *Registration) put(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	lease, err := g.client.Grant(ctx, g.ttl)
	if err != nil {
		return err
	}
	g.lease = lease.ID
	_, err = g.client.Put(ctx, g.key, g.value, clientv3.WithLease(lease.ID))
	return err
}

// keep renews the lease, and puts the key again when the lease is lost, until ctx ends.
func (g *Registration) keep(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		alive, err := g.client.KeepAlive(ctx, g.lease)
		if err == nil {
			for range alive { // ends with the lease, or ctx
				pause = firstPause
			}
			err = errors.New("the lease is lost")
		}
		if ctx.Err() != nil {
			return
		}
		g.log.Warn("the server is registered again", "key", g.key, "err", err)
		for ; ; pause = min(2*pause, lastPause) {
			if !wait(ctx, pause/2+rand.N(pause/2+1)) {
				return
			}
			if err = g.put(ctx); err == nil {
				break
			}
			if ctx.Err() == nil {
				g.log.Warn("the server cannot be registered", "key", g.key, "err", err)
			}
		}
	}
}

// Close removes the key. It waits at most ten seconds for etcd; then etcd removes the key when the lease ends.
func (g *Registration) Close() error {
	g.cancel()
	g.wg.Wait()
	if err := g.revoke(); err != nil {
		return fmt.Errorf("etcd: remove %s: %w", g.key, err)
	}
	return nil
}

// revoke ends the lease, and the key with it.
func (g *Registration) revoke() error {
	if g.lease == clientv3.NoLease {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), listTime)
	defer cancel()
	_, err := g.client.Revoke(ctx, g.lease)
	return err
}
