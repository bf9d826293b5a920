package sm

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// handlerFunc is a handler.
type handlerFunc func(m *na.Message) na.Task

func (f handlerFunc) Request(m *na.Message) na.Task { return f(m) }

// TestTaskBlocks has a task that does not end: other requests are served, and so are those that came with it.
func TestTaskBlocks(t *testing.T) {
	block, h := make(chan struct{}), &echo{}
	var once sync.Once
	server := open(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		answer := h.Request(m)
		if len(m.Data) == 3 {
			return taskFunc(func() {
				<-block
				answer.Run()
			})
		}
		return answer
	})})
	t.Cleanup(func() { once.Do(func() { close(block) }) })
	h.ep.Store(server)
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	send, recv := newSignal(), newSignal()
	client.RecvExpected(&recv.op, to, 1000, make([]byte, 8))
	client.SendRequest(&send.op, to, 1000, []byte("abc"))
	calls(t, client, server.own.String())
	once.Do(func() { close(block) })
	if err := recv.wait(t); err != nil {
		t.Error(err)
	}
	if err := send.wait(t); err != nil {
		t.Error(err)
	}
}

// TestTaskExits has a task end its goroutine.
func TestTaskExits(t *testing.T) {
	h := &echo{}
	server := open(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		if len(m.Data) == 3 {
			return taskFunc(runtime.Goexit)
		}
		return h.Request(m)
	})})
	h.ep.Store(server)
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	for range 5 {
		send := newSignal()
		client.SendRequest(&send.op, to, 1, []byte("abc"))
		if err := send.wait(t); err != nil {
			t.Fatal(err)
		}
		calls(t, client, server.own.String())
	}
}

// TestNested has the task of a request call another server, and the first one itself.
func TestNested(t *testing.T) {
	back, _ := serve(t, Config{})
	h := &echo{}
	var front *Endpoint
	var ready sync.WaitGroup
	ready.Add(1)
	front = open(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		answer := h.Request(m)
		if len(m.Data) != 3 {
			return answer
		}
		return taskFunc(func() {
			ready.Wait()
			for _, to := range []string{back.own.String(), front.own.String()} {
				if _, err := newCaller(front, lookup(t, front, to)).call(t, []byte("inner")); err != nil {
					t.Error(err)
				}
			}
			answer.Run()
		})
	})})
	h.ep.Store(front)
	ready.Done()
	client := open(t, Config{})
	c := newCaller(client, lookup(t, client, front.own.String()))
	for range 20 {
		if got, err := c.call(t, []byte("abc")); err != nil || string(got) != "abc" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// TestParkCycles calls with random gaps around the spin window, so that both sides park and wake at all moments, with a
// client of this package and one of C's kind. No call may take a second.
func TestParkCycles(t *testing.T) {
	n, _ := countFrom(t, cyclesEnv, 2000)
	server, _ := serve(t, Config{Progress: progress.NewFixed(20 * time.Microsecond)})
	client := open(t, Config{Progress: progress.NewFixed(20 * time.Microsecond)})
	c := newCaller(client, lookup(t, client, server.own.String()))
	r := newRaw(t, server)
	r.announce()
	rng := rand.New(rand.NewPCG(3, 4))
	gap := func() {
		for end := time.Now().Add(time.Duration(rng.IntN(60)) * time.Microsecond); time.Now().Before(end); {
			runtime.Gosched()
		}
	}
	var worst time.Duration
	for i := range n {
		gap()
		begin := time.Now()
		if i%2 == 0 {
			if _, err := c.call(t, []byte("ours")); err != nil {
				t.Fatal(err)
			}
		} else {
			r.request(uint32(i), []byte("C's"))
			if d, _ := r.answer(); d.tag() != uint32(i) {
				t.Fatalf("call %d got the answer to %d", i, d.tag())
			}
		}
		worst = max(worst, time.Since(begin))
	}
	t.Logf("%d cycles, the longest call %v", n, worst)
	r.release()
	shut(t, client)
	settled(t, server)
}

// TestCallers has several goroutines call at the same time, over one connection and several, while their endpoint serves
// too.
func TestCallers(t *testing.T) {
	a, _ := serve(t, Config{})
	b, _ := serve(t, Config{})
	var wg sync.WaitGroup
	for i := range 16 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		wg.Go(func() {
			c := newCaller(from, lookup(t, from, to.own.String()))
			c.tag = uint32(i) << 16
			for range 100 {
				msg := make([]byte, int(c.tag)%1500)
				if got, err := c.call(t, msg); err != nil || len(got) != len(msg) {
					t.Errorf("%d bytes of %d, %v", len(got), len(msg), err)
					return
				}
			}
		})
	}
	wg.Wait()
}
