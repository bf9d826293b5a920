// Package etcd lists the servers of a service for [balance.Client] from keys of etcd. Each key under a prefix stands for a server:
//
//	servers, err := etcd.New(&etcd.Config{Client: client, Prefix: "services/store/"})
//	defer servers.Close()
//	c, err := balance.New(engine, &balance.Config{Resolver: servers})
//
// The value of a key is the address of a server, or a JSON object with the address and the provider, such as {"Addr":"ofi+tcp://192.0.2.7:4321","Provider":3}.
// A server puts itself there by [Register], for as long as it lives.
package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"cinnabar/balance"
	"cinnabar/codes"
)

// Config is the configuration of a Resolver.
type Config struct {
	// Client is the connection to etcd. The program closes it after the Resolver. MaxCallRecvMsgSize of its configuration bounds the bytes of one answer; 64 MiB
	// are enough.
	Client *clientv3.Client
	Prefix string       // of the keys; must not be empty
	Logger *slog.Logger // of failures; nil: none are logged
}

// Bounds of what is read from etcd.
const (
	maxServers = 4096    // keys under the prefix
	pageKeys   = 32      // of one answer, because each value may have as many bytes as a request of etcd
	maxValue   = 4 << 10 // bytes of a value; longer ones are left out
	maxKey     = 1 << 10 // bytes of a key; longer ones are left out
)

// Times of the goroutine.
const (
	listTime   = 10 * time.Second       // for one answer of etcd
	firstPause = 200 * time.Millisecond // before the first repetition
	lastPause  = 30 * time.Second
)

// Resolver is a [balance.Notifier] with the servers under a prefix. It has a goroutine and a watch until Close. While etcd reports an error, Resolve returns
// the last servers and the error, so that a Client keeps those that it has. While etcd cannot be reached, the servers stay the same.
type Resolver struct {
	balance.Feed

	cfg    Config
	log    *slog.Logger
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// Only the goroutine uses these.
	servers map[string]balance.Address // by key
	pause   time.Duration              // after the last failure; 0: there was none
}

// New returns a Resolver. It does not wait for etcd.
func New(cfg *Config) (*Resolver, error) {
	switch {
	case cfg == nil || cfg.Client == nil:
		return nil, fmt.Errorf("etcd: %w: no Client given", codes.InvalidArg)
	case cfg.Prefix == "" || len(cfg.Prefix) > maxKey:
		return nil, fmt.Errorf("etcd: %w: Prefix has %d bytes, must have 1 to %d", codes.InvalidArg, len(cfg.Prefix), maxKey)
	}
	r := &Resolver{cfg: *cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wg.Go(func() { r.run(ctx) })
	return r, nil
}

// Close ends the goroutine and the watch, and waits for them. Clients that use r must be closed before. Close always returns nil.
func (r *Resolver) Close() error {
	r.cancel()
	r.wg.Wait()
	return nil
}

// errCompacted is the error of a watch whose revision etcd has compacted. The remedy is a new list.
var errCompacted = errors.New("the revision is compacted")

// run lists the keys and then watches them, again after each failure, until ctx ends.
func (r *Resolver) run(ctx context.Context) {
	for ctx.Err() == nil {
		revision, err := r.list(ctx)
		if err == nil {
			err = r.watch(ctx, revision)
		}
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errCompacted) || r.pause > 0 { // the first one is normal
			r.log.Warn("the servers under the prefix cannot be read", "prefix", r.cfg.Prefix, "err", err)
			r.Set(r.listed(), fmt.Errorf("etcd: the servers under %q: %w", r.cfg.Prefix, err))
		}
		r.pause = min(lastPause, max(firstPause, 2*r.pause))
		if !wait(ctx, r.pause/2+rand.N(r.pause/2+1)) {
			return
		}
	}
}

// wait waits, and returns false if ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// list replaces the servers by those that etcd has, all of one revision, which it returns.
func (r *Resolver) list(ctx context.Context) (revision int64, err error) {
	servers, keys := map[string]balance.Address{}, 0
	from, end := r.cfg.Prefix, clientv3.GetPrefixRangeEnd(r.cfg.Prefix)
	for {
		resp, err := r.page(ctx, from, end, revision)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		if keys += len(resp.Kvs); keys > maxServers {
			return 0, fmt.Errorf("there are more than %d keys", maxServers)
		}
		for _, kv := range resp.Kvs {
			if string(kv.Key) < from || !strings.HasPrefix(string(kv.Key), r.cfg.Prefix) {
				return 0, fmt.Errorf("etcd answers with the key %s, which was not asked for", quote(kv.Key))
			}
			from = string(kv.Key) + "\x00"
			r.put(servers, kv)
		}
		if !resp.More || len(resp.Kvs) == 0 {
			break
		}
	}
	r.servers = servers
	r.Set(r.listed(), nil)
	return revision, nil
}

// page reads keys from one key on, of a revision; 0: the newest one.
func (r *Resolver) page(ctx context.Context, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	return r.cfg.Client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(pageKeys))
}

// put puts the server of a key into servers. A value that names none removes the key's server.
func (r *Resolver) put(servers map[string]balance.Address, kv *mvccpb.KeyValue) {
	a, err := parse(kv)
	if err != nil {
		r.log.Warn("a key does not name a server", "key", quote(kv.Key), "err", err)
		delete(servers, string(kv.Key))
		return
	}
	servers[string(kv.Key)] = a
}

// entry is the JSON object of a server.
type entry struct {
	Addr     string
	Provider *uint16 `json:",omitempty"`
}

// parse returns the server of a key.
func parse(kv *mvccpb.KeyValue) (a balance.Address, err error) {
	if len(kv.Key) > maxKey || len(kv.Value) > maxValue {
		return a, fmt.Errorf("its key has %d bytes and its value %d, at most %d and %d", len(kv.Key), len(kv.Value), maxKey, maxValue)
	}
	e := entry{Addr: string(kv.Value)}
	if len(kv.Value) > 0 && kv.Value[0] == '{' {
		e.Addr = ""
		if err := json.Unmarshal(kv.Value, &e); err != nil {
			return a, fmt.Errorf("its value is no JSON object of a server: %w", err)
		}
	}
	if e.Addr == "" || strings.ContainsFunc(e.Addr, func(c rune) bool { return c <= ' ' || c == '@' || !unicode.IsPrint(c) }) {
		return a, fmt.Errorf("%s is no address", quote(e.Addr))
	}
	return balance.Address{Addr: e.Addr, Provider: e.Provider}, nil
}

// quote makes hostile bytes printable, and cuts them off.
func quote[T string | []byte](b T) string {
	const most = 128
	if len(b) > most {
		return strconv.QuoteToASCII(string(b[:most])) + "..."
	}
	return strconv.QuoteToASCII(string(b))
}

// listed returns the servers in the order of their keys.
func (r *Resolver) listed() []balance.Address {
	var list []balance.Address
	for _, key := range slices.Sorted(maps.Keys(r.servers)) {
		list = append(list, r.servers[key])
	}
	return list
}

// watch applies the changes after a revision until an error.
func (r *Resolver) watch(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx)) // a member that is cut off from the others ends the watch
	defer cancel()
	// With WithProgressNotify the client knows newer revisions in quiet times, so that a watch goes on after a compaction.
	for resp := range r.cfg.Client.Watch(ctx, r.cfg.Prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithProgressNotify(), clientv3.WithFragment()) {
		if resp.CompactRevision > 0 {
			return fmt.Errorf("%w: %w", errCompacted, resp.Err())
		}
		if err := resp.Err(); err != nil {
			return err
		}
		for _, ev := range resp.Events {
			if err := r.apply(ev); err != nil {
				return err
			}
		}
		r.pause = 0
		r.Set(r.listed(), nil)
	}
	return errors.New("the watch has ended")
}

// apply applies a change.
func (r *Resolver) apply(ev *clientv3.Event) error {
	switch {
	case ev.Kv == nil || !strings.HasPrefix(string(ev.Kv.Key), r.cfg.Prefix):
		return errors.New("etcd reports a key that is not watched")
	case ev.Type == clientv3.EventTypeDelete:
		delete(r.servers, string(ev.Kv.Key))
		return nil
	}
	r.put(r.servers, ev.Kv)
	if len(r.servers) > maxServers {
		return fmt.Errorf("there are more than %d keys", maxServers)
	}
	return nil
}
