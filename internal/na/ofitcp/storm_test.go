package ofitcp

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/na"
)

// TestStorm has calls, transfers and cancellations of many goroutines go on while the server's connections are cut and
// the server is restarted on its port. Every operation completes once, with a result that can be; what went well is
// right; and in the end everything works.
func TestStorm(t *testing.T) {
	const size = 1<<20 + 77
	server := openEcho(t, Config{})
	addr := server.Addr().String()
	src := random(size, 8)
	mem, err := server.Register(src, na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	cl := openEndpoint(t, Config{DialTimeout: 2 * time.Second})
	to := addrOf(t, cl, server)
	first, err := cl.ParseHandle(mem.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	var from atomic.Value
	from.Store(first)
	var ok, failed atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	storm := func(f func(rng *rand.Rand) error) {
		seed := rand.Uint64()
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch err := f(rng); na.KindOf(err) {
				case na.Unreachable, na.Canceled:
					failed.Add(1)
				case 0:
					if err != nil {
						t.Errorf("%v", err)
					}
					ok.Add(1)
				default:
					t.Errorf("%v", err)
				}
			}
		})
	}
	for g := range 4 {
		c := newClient(cl, to, uint32(g)<<24)
		storm(func(rng *rand.Rand) error {
			data := random(rng.IntN(3000), rng.Uint64())
			got, err := c.call(t, data)
			if err == nil && !bytes.Equal(got, data) {
				t.Error("an answer differs")
			}
			return err
		})
	}
	for range 3 {
		local, op := make([]byte, size), newCall()
		storm(func(rng *rand.Rand) error {
			r, _ := from.Load().(na.RemoteMemory)
			cl.Get(&op.op, to, []na.Fragment{{Remote: r, Local: local}})
			if rng.IntN(3) == 0 {
				cl.Cancel(&op.op)
			}
			err := op.wait(t, cl, to)
			if err == nil && !bytes.Equal(local, src) {
				t.Error("bytes differ")
			}
			return err
		})
	}
	rng := rand.New(rand.NewPCG(3, 4))
	rounds := 30
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		pause := time.NewTimer(time.Duration(rng.IntN(20)) * time.Millisecond)
		<-pause.C
		if rng.IntN(3) > 0 {
			for _, c := range server.connections() {
				c.fail(na.Unreachable, errLost)
			}
			continue
		}
		closeEndpoint(t, server)
		server = openEcho(t, Config{Address: addr})
		if mem, err = server.Register(src, na.ReadOnly); err != nil {
			t.Fatal(err)
		}
		r, err := cl.ParseHandle(mem.AppendHandle(nil))
		if err != nil {
			t.Fatal(err)
		}
		from.Store(r)
	}
	close(stop)
	wg.Wait()
	t.Logf("%d operations went well, %d failed", ok.Load(), failed.Load())
	r, _ := from.Load().(na.RemoteMemory)
	for i := range 20 { // an operation may still find that the connection was cut
		local, op := make([]byte, size), newCall()
		cl.Get(&op.op, to, []na.Fragment{{Remote: r, Local: local}})
		if err := op.wait(t, cl, to); err == nil {
			if !bytes.Equal(local, src) {
				t.Error("bytes differ")
			}
			return
		} else if i == 19 {
			t.Error(err)
		}
	}
}

// TestUnreadAnswers: answers to a peer that does not read complete only as TCP takes them.
// parity: D05
func TestUnreadAnswers(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	c := r.connect(e)
	const n = 8000
	var done atomic.Int32
	ops := make([]na.Op, n)
	msg := make([][]byte, n)
	for i := range ops {
		msg[i] = make([]byte, e.Limits().ResponseRoom+e.Limits().MaxResponse)
		ops[i].Done = completerFunc(func(op *na.Op) {
			if op.Err != nil {
				t.Error(op.Err)
			}
			done.Add(1)
		})
		e.SendExpected(&ops[i], to, uint32(i), msg[i])
	}
	if d := done.Load(); d == n || d == 0 {
		t.Errorf("%d of %d answers of 4 KiB are said to be sent to a peer that reads nothing", d, n)
	}
	for i := range n {
		if m, _ := c.message(); m.tag != uint64(i) {
			t.Fatalf("answer %d has tag %d", i, m.tag)
		}
	}
	last := newCall()
	e.SendExpected(&last.op, to, n, make([]byte, e.Limits().ResponseRoom))
	if err := last.park(t); err != nil || done.Load() != n {
		t.Errorf("%v, %d answers are sent", err, done.Load())
	}
	if own := to.(*peer).conn.Load(); own.answers.Load() != 0 {
		t.Errorf("%d answers are said to wait", own.answers.Load())
	}
}

// completerFunc makes a completer of a function.
type completerFunc func(op *na.Op)

func (f completerFunc) Complete(op *na.Op) { f(op) }
