package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"cinnabar"
	"cinnabar/balance"
	"cinnabar/codes"
	"cinnabar/native"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLimit is the longest time for anything in a test that should take no time.
const testLimit = time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// server runs an etcd of the test's own, which listens at Unix sockets in the test's folder, and returns a client. It skips the test where no etcd is installed.
func server(t *testing.T) *clientv3.Client {
	t.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Skipf("no etcd is installed (etcd-server of Debian): %v", err)
	}
	dir := t.TempDir()
	// The sockets have the names "client:1" and "peer:1", in the folder of the process.
	cmd := exec.Command(program, "--name=test", "--data-dir=data", "--log-level=info", "--listen-client-urls=unix://client:1", "--advertise-client-urls=unix://client:1",
		"--listen-peer-urls=unix://peer:1", "--initial-advertise-peer-urls=unix://peer:1", "--initial-cluster=test=unix://peer:1", "--unsafe-no-fsync")
	cmd.Dir = dir
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	ready, ended := make(chan bool, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if strings.Contains(lines.Text(), "ready to serve client requests") {
				ready <- true
				break
			}
		}
		_, _ = io.Copy(io.Discard, log) // the rest is not wanted
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process of this test
		<-ended
		_ = cmd.Wait() // killed
	})
	timer := time.NewTimer(testLimit)
	defer timer.Stop()
	select {
	case <-ready:
	case <-ended:
		t.Fatal("etcd has ended")
	case <-timer.C:
		t.Fatal("etcd is not ready")
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(dir, "client:1")}, DialTimeout: testLimit, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// await waits until the resolver has these servers and no error.
func await(t *testing.T, r *Resolver, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	for {
		changed := r.Changed()
		list, err := r.Resolve(ctx)
		var have []string
		for _, a := range list {
			have = append(have, a.String())
		}
		if err == nil && slices.Equal(have, want) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the servers are %v, with %v; want %v", have, err, want)
		}
	}
}

// open opens a resolver of the keys under "store/".
func open(t *testing.T, c *clientv3.Client) *Resolver {
	t.Helper()
	r, err := New(&Config{Client: c, Prefix: "store/"})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// TestResolver lists the servers in pages, and follows changes, also beyond a compaction.
func TestResolver(t *testing.T) {
	c := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	put := func(key, value string) {
		t.Helper()
		_, err := c.Put(ctx, key, value)
		must(t, err)
	}
	var want []string
	for n := range 2*pageKeys + 1 {
		want = append(want, fmt.Sprintf("ofi+tcp://192.0.2.1:%d", 1000+n))
		put(fmt.Sprintf("store/%03d", n), want[n])
	}
	put("store", "ofi+tcp://192.0.2.2:1")  // before the prefix
	put("store0", "ofi+tcp://192.0.2.2:2") // behind it
	r := open(t, c)
	await(t, r, want...)
	_, err := c.Delete(ctx, "store/0", clientv3.WithPrefix())
	must(t, err)
	await(t, r)
	put("store/b", `{"Addr":"ofi+tcp://192.0.2.3:4321","Provider":7}`)
	put("store/a", `{"Op":0,"Addr":"ofi+tcp://192.0.2.4:4321","Metadata":null}`)
	await(t, r, "ofi+tcp://192.0.2.4:4321", "ofi+tcp://192.0.2.3:4321@7")
	for _, value := range []string{"", "two words", "{", `{"Addr":""}`, `{"Addr":"x","Provider":65536}`, "a\x1b[31m", strings.Repeat("x", maxValue+1)} {
		put("store/a", value) // names no server
		put("store/z", "z")
		await(t, r, "ofi+tcp://192.0.2.3:4321@7", "z")
		put("store/a", "a")
		_, err := c.Delete(ctx, "store/z")
		must(t, err)
		await(t, r, "a", "ofi+tcp://192.0.2.3:4321@7")
	}
	resp, err := c.Get(ctx, "x")
	must(t, err)
	_, err = c.Compact(ctx, resp.Header.Revision)
	must(t, err)
	put("store/a", "c")
	await(t, r, "c", "ofi+tcp://192.0.2.3:4321@7")
}

// TestCompacted watches from a revision that etcd has compacted.
func TestCompacted(t *testing.T) {
	c := server(t)
	for range 3 {
		_, err := c.Put(t.Context(), "store/a", "a")
		must(t, err)
	}
	resp, err := c.Get(t.Context(), "x")
	must(t, err)
	_, err = c.Compact(t.Context(), resp.Header.Revision)
	must(t, err)
	r := &Resolver{cfg: Config{Client: c, Prefix: "store/"}}
	if err := r.watch(t.Context(), 1); !errors.Is(err, errCompacted) {
		t.Errorf("%v, want %v", err, errCompacted)
	}
}

// TestTooMany puts more keys than a resolver takes, before its list and after it. It keeps the servers that it has.
func TestTooMany(t *testing.T) {
	r := &Resolver{cfg: Config{Prefix: "store/"}, servers: map[string]balance.Address{}}
	event := func(n int) *clientv3.Event {
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "store/%d", n), Value: []byte("a")}}
	}
	for n := range maxServers {
		must(t, r.apply(event(n)))
	}
	if err := r.apply(event(maxServers)); err == nil || !strings.Contains(err.Error(), "more than 4096 keys") {
		t.Error(err)
	}
	for _, ev := range []*clientv3.Event{{}, {Kv: &mvccpb.KeyValue{Key: []byte("other")}}} {
		if err := r.apply(ev); err == nil {
			t.Errorf("%v is no error", ev)
		}
	}
	c := server(t)
	for n := 0; n <= maxServers; n += 64 {
		var ops []clientv3.Op
		for k := range 64 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("store/%05d", n+k), "a"))
		}
		_, err := c.Txn(t.Context()).Then(ops...).Commit()
		must(t, err)
	}
	if _, err := open(t, c).Resolve(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 4096 keys") {
		t.Errorf("list: %v", err)
	}
}

// TestRegister registers a server that a client finds and calls. The key goes with Close, and comes back when its lease is lost.
func TestRegister(t *testing.T) {
	c := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	where := native.New[struct{}, string]("where", native.Idempotent())
	s, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	must(t, err)
	defer s.Close()
	must(t, where.Handle(s, func(context.Context, struct{}) (string, error) { return s.Addr(), nil }))
	r := open(t, c)
	await(t, r)
	g, err := Register(ctx, &Config{Client: c, Prefix: "store/"}, balance.Address{Addr: s.Addr()}, time.Second)
	must(t, err)
	await(t, r, s.Addr())
	e, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	must(t, err)
	defer e.Close()
	client, err := balance.New(e, &balance.Config{Resolver: r, Refresh: time.Hour})
	must(t, err)
	defer client.Close()
	if at, err := balance.Call(ctx, client, where, struct{}{}); err != nil || at != s.Addr() {
		t.Errorf("%q, %v", at, err)
	}
	leases, err := c.Leases(ctx)
	must(t, err)
	_, err = c.Revoke(ctx, leases.Leases[0].ID)
	must(t, err)
	await(t, r)
	await(t, r, s.Addr())
	must(t, g.Close())
	await(t, r)
}

// TestArguments refuses configurations.
func TestArguments(t *testing.T) {
	c := clientv3.NewCtxClient(t.Context())
	defer c.Close()
	for _, cfg := range []*Config{nil, {Prefix: "a"}, {Client: c}, {Client: c, Prefix: strings.Repeat("x", maxKey+1)}} {
		if _, err := New(cfg); codes.Of(err) != codes.InvalidArg {
			t.Errorf("New: %v", err)
		}
	}
	for _, a := range []string{"", "a"} {
		if _, err := Register(t.Context(), &Config{Client: c, Prefix: "p"}, balance.Address{Addr: a}, time.Duration(-len(a))); codes.Of(err) != codes.InvalidArg {
			t.Errorf("Register: %v", err)
		}
	}
}
