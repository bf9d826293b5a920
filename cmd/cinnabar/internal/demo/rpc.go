package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"strings"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/margo"
	"cinnabar/regmem"
	"cinnabar/rmem"
	"cinnabar/verbs"
	"cinnabar/verbs/auto"
)

// The last part of the demonstration is remote procedure calls: the peer serves sum, for which it pulls ten integers
// from the parent's memory each time, and fetch, for which it pulls the data. It also lends memory, which the parent
// writes and reads. Both sides know the order, and send each other the rest over the exchange:
//
//	parent                                peer
//	  | <------------ its engine's address -- |
//	  |      ... calls and their pulls ...    |
//	  | -- an empty line ------------------> |  and the peer's engine ends
//	  | <------------------ an empty line -- |
//
// and once more for each other network. The parent waits for the peer's last line, because the peer ends when the parent does: it
// could otherwise end before it has read the parent's line.
const (
	sumCalls  = 4  // calls of sum, as the client of Margo's tutorial makes
	sumResult = 36 // the sum that each of them returns
)

// sumRPC is the call of Margo's tutorial "Transferring data over RDMA": the server pulls an array of integers from the caller's
// memory and returns their sum.
var sumRPC = cinnabar.NewRPC[sumIn, sumOut]("sum")

// sumIn is the tutorial's sum_in_t.
type sumIn struct {
	N    int32 // integers at Data
	Data cinnabar.BulkHandle
}

// sumOut is the tutorial's sum_out_t.
type sumOut struct {
	Ret int32
}

// networks returns the addresses at which the engines of the demo listen, one for each network that this machine has. The demo makes its
// calls over one network after the other. Both processes are on this machine, so the address of ofi+verbs is the loopback address of dev.
func networks(ctx context.Context, dev *verbs.Device) ([]string, error) {
	at, err := loopbackOf(dev)
	if err != nil {
		return nil, err
	}
	networks := []string{"ofi+tcp://127.0.0.1:0", "ofi+verbs://" + at.String()}
	if shared, _, err := margo.ChooseAddr(ctx, "na+sm", nil); err == nil {
		networks = append(networks, shared)
	}
	return networks, nil
}

// config returns the configuration of the engines. Engines on ofi+verbs use dev.
func config(ctx context.Context, dev *verbs.Device, autoSM bool) *cinnabar.Config {
	return cli.Logged(ctx, &cinnabar.Config{Device: auto.Use(dev), AutoSM: autoSM})
}

// carrier returns the name of the network in the table: that of protocol, and that of shared memory if it has carried calls beside it.
func carrier(e *cinnabar.Engine, protocol string) string {
	if e.Stats().Net.RequestsShared > 0 {
		return "na+sm beside " + protocol
	}
	return protocol
}

// fetchRPC has the peer pull the next part of the data. Parts come in order.
var fetchRPC = cinnabar.NewRPC[cinnabar.BulkHandle, fetched]("demo_fetch")

// fetched is how a pull went.
type fetched struct {
	Nanoseconds int64             // that the pull took
	Digest      [sha256.Size]byte // of all parts so far
}

// calls is the parent's part.
func (d *session) calls(ctx context.Context, dev *verbs.Device, x *link.Exchange) error {
	list, err := networks(ctx, dev)
	if err != nil {
		return err
	}
	for _, network := range list {
		if err := d.callsOver(ctx, dev, x, network); err != nil {
			return err
		}
	}
	return nil
}

func (d *session) callsOver(ctx context.Context, dev *verbs.Device, x *link.Exchange, network string) (err error) {
	protocol, _, _ := strings.Cut(network, ":")
	var address string
	if err := x.Receive(ctx, &address); err != nil {
		return err
	}
	engine, err := cinnabar.Open(ctx, network, config(ctx, dev, d.autoSM))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	peer, err := engine.Lookup(address)
	if err != nil {
		return err
	}
	if err := d.sums(ctx, engine, peer, protocol); err != nil {
		return fmt.Errorf("RPC sum over %s: %w", protocol, cli.Reason(ctx, err))
	}
	protocol = carrier(engine, protocol)
	if err := d.fetch(ctx, engine, peer, protocol); err != nil {
		return fmt.Errorf("RPC with bulk pull over %s: %w", protocol, cli.Reason(ctx, err))
	}
	if err := d.remoteMemory(ctx, peer, protocol); err != nil {
		return fmt.Errorf("remote memory over %s: %w", protocol, cli.Reason(ctx, err))
	}
	if err := x.Send(""); err != nil {
		return err
	}
	var done string
	return x.Receive(ctx, &done)
}

// sums makes the tutorial's calls, each with memory of its own.
func (d *session) sums(ctx context.Context, engine *cinnabar.Engine, peer *cinnabar.Endpoint, protocol string) error {
	values := []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, 5}
	start := time.Now()
	for range sumCalls {
		if err := sumOnce(ctx, engine, peer, values); err != nil {
			return err
		}
	}
	took := time.Since(start)
	d.rows = append(d.rows, row{
		step: "RPC sum, " + carrier(engine, protocol), operations: sumCalls, bytes: int64(sumCalls * 4 * len(values)), took: took,
		rate: fmt.Sprintf("%.0f/s", cli.PerSecond(sumCalls, took)), verified: fmt.Sprintf("%d each time", sumResult),
	})
	return nil
}

func sumOnce(ctx context.Context, engine *cinnabar.Engine, peer *cinnabar.Endpoint, values []int32) (err error) {
	b, err := engine.Expose(cinnabar.ReadOnly, regmem.Bytes(values))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	out, err := sumRPC.Call(ctx, peer, sumIn{N: int32(len(values)), Data: b.Handle()})
	if err == nil && out.Ret != sumResult {
		err = fmt.Errorf("verification failed: the response is %d, expected %d", out.Ret, sumResult)
	}
	return err
}

// fetch exposes the data, round by round, in the memory that the operations before have used, and has the peer pull it.
// The time is that of the pulls as the peer measures it, without making and hashing the data.
func (d *session) fetch(ctx context.Context, engine *cinnabar.Engine, peer *cinnabar.Endpoint, protocol string) (err error) {
	r, err := d.src.open()
	if err != nil {
		return err
	}
	defer cli.Shut(r)
	round := d.data.Bytes()[:roundLen]
	b, err := engine.Expose(cinnabar.ReadOnly, round)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	row := row{step: "bulk pull, " + protocol, bytes: d.src.Size}
	arrived := sha256.Sum256(nil)
	for left := d.src.Size; left > 0; {
		n := min(left, roundLen)
		if err := d.src.fill(r, round[:n]); err != nil {
			return err
		}
		out, err := fetchRPC.Call(ctx, peer, b.Slice(0, n).Handle())
		if err != nil {
			return err
		}
		arrived = out.Digest
		row.operations += (n + chunkLen - 1) / chunkLen
		row.took += time.Duration(out.Nanoseconds)
		left -= n
	}
	if arrived != d.digest {
		return fmt.Errorf("verification failed: the data that the peer pulled has SHA-256 %x, the data had %x before; did %s change meanwhile?", arrived, d.digest, d.src.name())
	}
	row.rate = fmt.Sprintf("%.0f MiB/s", cli.MiBPerSecond(row.bytes, row.took))
	row.verified = equal
	d.rows = append(d.rows, row)
	return nil
}

// calls is the peer's part.
func (p *peer) calls(ctx context.Context, dev *verbs.Device, x *link.Exchange) error {
	list, err := networks(ctx, dev)
	if err != nil {
		return err
	}
	for _, network := range list {
		if err := p.callsOver(ctx, dev, x, network); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) callsOver(ctx context.Context, dev *verbs.Device, x *link.Exchange, network string) (err error) {
	engine, err := cinnabar.Listen(ctx, network, config(ctx, dev, p.autoSM))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	local, err := engine.Expose(cinnabar.WriteOnly, p.data.Bytes()[:roundLen]) // until the engine closes
	if err != nil {
		return err
	}
	s := &service{engine: engine, local: local, sum: sha256.New()}
	if err := errors.Join(sumRPC.Handle(engine, s.add), fetchRPC.Handle(engine, s.fetch)); err != nil {
		return err
	}
	lender, err := rmem.Serve(engine, rmem.Config{Provider: provider, Quota: roundLen, HostQuota: roundLen})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lender.Close()) }()
	if err := x.Send(engine.Addr()); err != nil {
		return err
	}
	var done string
	if err := errors.Join(x.Receive(ctx, &done), s.failure()); err != nil {
		return err
	}
	return x.Send("")
}

// service has the RPCs of the peer.
type service struct {
	engine *cinnabar.Engine
	local  *cinnabar.Bulk // where data is pulled to

	mu  sync.Mutex
	sum hash.Hash // +checklocks:mu
	err error     // +checklocks:mu
}

// fail keeps the first error of a handler, because its text does not travel to the caller.
func (s *service) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return err
}

func (s *service) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// add serves sum.
func (s *service) add(ctx context.Context, in sumIn) (sumOut, error) {
	if in.N < 0 || in.N > roundLen/4 {
		return sumOut{}, s.fail(fmt.Errorf("the parent asks for the sum of %d values", in.N))
	}
	values := make([]int32, in.N)
	b, err := s.engine.Expose(cinnabar.WriteOnly, regmem.Bytes(values))
	if err != nil {
		return sumOut{}, s.fail(err)
	}
	_, err = in.Data.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, b)
	if err := errors.Join(err, b.Close()); err != nil {
		return sumOut{}, s.fail(err)
	}
	var out sumOut
	for _, v := range values {
		out.Ret += v
	}
	return out, nil
}

// fetch serves fetchRPC.
func (s *service) fetch(ctx context.Context, part cinnabar.BulkHandle) (fetched, error) {
	if part.Len() > s.local.Len() {
		return fetched{}, s.fail(fmt.Errorf("the parent begins a round of %d bytes, over the agreed %d", part.Len(), s.local.Len()))
	}
	start := time.Now()
	n, err := part.On(cinnabar.InfoFrom(ctx).Peer).PullChunks(ctx, s.local, chunkLen, 0)
	took := time.Since(start)
	if err != nil {
		return fetched{}, s.fail(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Write(s.local.Bytes()[:n])
	return fetched{int64(took), [sha256.Size]byte(s.sum.Sum(nil))}, nil
}
