//go:build linux

package uverbs

import (
	"errors"
	"syscall"
	"testing"
)

// plainQueue makes a queue in plain memory: 1<<logSlots elements of 1<<shift bytes.
func plainQueue(t *testing.T, logSlots, shift uint32) rxeQueue {
	t.Helper()
	mem := aligned(rxeDataAt + 1<<(logSlots+shift))
	native.PutUint32(mem[rxeLogElemAt:], shift)
	native.PutUint32(mem[rxeMaskAt:], 1<<logSlots-1)
	return get[rxeQueue](t)(newRxeQueue(mem, 1))
}

func TestRxeQueueHead(t *testing.T) {
	mem := plainQueue(t, 3, 6).mem
	for name, spoil := range map[string]func(){
		"mask is no mask":       func() { native.PutUint32(mem[rxeMaskAt:], 6) },
		"more than is mapped":   func() { native.PutUint32(mem[rxeMaskAt:], 15) },
		"as many as there are":  func() { native.PutUint32(mem[rxeMaskAt:], 1<<32-1) },
		"elements are small":    func() { native.PutUint32(mem[rxeLogElemAt:], 5) },
		"elements are large":    func() { native.PutUint32(mem[rxeLogElemAt:], 7) },
		"elements are enormous": func() { native.PutUint32(mem[rxeLogElemAt:], 1<<31) },
	} {
		native.PutUint32(mem[rxeLogElemAt:], 6)
		native.PutUint32(mem[rxeMaskAt:], 7)
		spoil()
		if _, err := newRxeQueue(mem, 64); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := newRxeQueue(mem[:100], 64); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("no head: %v", err)
	}
}

func TestRxeQueueWraps(t *testing.T) {
	q := plainQueue(t, 2, 6)
	r := rxeRQ{queue: q, maxSGE: 1}
	for round := range 10 {
		n, err := r.postRecv(make([]RecvWR, 5), nil)
		if n != 3 || !errors.Is(err, syscall.ENOMEM) {
			t.Fatalf("round %d: %d, %v", round, n, err)
		}
		if got := (q.producer.Load() - q.consumer.Load()) & q.mask; got != 3 {
			t.Fatalf("round %d: %d in the queue", round, got)
		}
		q.consumer.Store(q.producer.Load())
	}
}

func TestRxeWithdraw(t *testing.T) {
	q := plainQueue(t, 2, 6)
	for start := range uint32(4) {
		q.own = start
		q.consumer.Store(start)
		q.advance()
		q.advance()
		q.publish()
		if q.withdraw(start); q.producer.Load() != start || !q.empty() {
			t.Errorf("from %d: producer at %d", start, q.producer.Load())
		}
	}
}

// hostile makes plain memory say everything that a bad kernel could.
func hostile(q *rxeQueue, seed uint32) {
	for i := range q.mem {
		seed = seed*1664525 + 1013904223
		q.mem[i] = byte(seed >> 24)
	}
}

func TestRxeHostileQueue(t *testing.T) {
	cq := &rxeCQ{queue: plainQueue(t, 3, 6)}
	rq := &rxeRQ{queue: plainQueue(t, 3, 7), maxSGE: 4}
	qp := &rxeQP{qp: &QP{typ: qptRC, Cap: QPCap{MaxSendSGE: 4, MaxInline: 64}}, sq: plainQueue(t, 3, 9)}
	qp.bell.fd = -1 // there is no kernel
	var out [20]WC
	for seed := range uint32(200) {
		for _, q := range []*rxeQueue{&cq.queue, &rq.queue, &qp.sq} {
			hostile(q, seed)
		}
		if n, err := cq.poll(out[:]); n > 7 || err != nil {
			t.Fatalf("%d completions, %v", n, err)
		}
		if n, _ := rq.postRecv(make([]RecvWR, 20), nil); n > 7 {
			t.Fatalf("%d receives", n)
		}
		if n, _ := qp.postSend(make([]SendWR, 20), nil); n > 7 {
			t.Fatalf("%d sends", n)
		}
	}
}

func TestRxeDoorbellFails(t *testing.T) {
	qp := &rxeQP{qp: &QP{typ: qptRC, Cap: QPCap{MaxSendSGE: 4}}, sq: plainQueue(t, 3, 9)}
	qp.bell.fd = -1
	window := &MW{RKey: 1}
	wrs := []SendWR{{Op: opSend}, {Op: opBindMW, Bind: &Bind{MW: window, RKey: 2}}}
	if n, err := qp.postSend(wrs, nil); n != 0 || !errors.Is(err, syscall.EBADF) {
		t.Errorf("posted %d, %v", n, err)
	}
	if qp.sq.producer.Load() != 0 || window.RKey != 1 {
		t.Errorf("producer at %d, key %d: the requests are still in the queue", qp.sq.producer.Load(), window.RKey)
	}
}

func TestRxeInline(t *testing.T) {
	qp := &rxeQP{qp: &QP{typ: qptRC, Cap: QPCap{MaxSendSGE: 4, MaxInline: 64}}, sq: plainQueue(t, 3, 9)}
	data := []byte("gathered from two places")
	at := fixed(t, data)
	list := []SGE{{Addr: at + 9, Length: 15}, {}, {Addr: at, Length: 9}}
	if _, err := qp.putSend(&SendWR{Op: opSend, Flags: sendInline, Num: 3}, list); err != nil {
		t.Fatal(err)
	}
	if got := string(qp.sq.slot(0)[rxeSendSize:][:24]); got != "from two placesgathered " {
		t.Errorf("inline data %q", got)
	}
}
