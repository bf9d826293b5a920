package xfer

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"cinnabar/verbs"
)

// Two machines that are told what happens in any order in which it can happen:
// each disk, digest, wire and queue of completions is as slow as the draw has it, and
// a device needs the data of a write until it says that it is done. Every chunk is stored and hashed as it was
// read, no message meets a side without a receive, and both sides agree in the end.
// parity: B23 B34
func TestRandomHistories(t *testing.T) {
	for name, a := range map[string]agreement{
		"basic":                    {protocol: Basic, imm: true, digest: NoDigest},
		"basic without immediates": {protocol: Basic, digest: NoDigest},
		"fast":                     {protocol: Fast},
		"fast without a digest":    {protocol: Fast, digest: NoDigest},
	} {
		t.Run(name, func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { newSimulation(t, a).run() }) })
	}
}

// newSimulation draws a transfer.
func newSimulation(t *rapid.T, a agreement) *simulation {
	const chunk = 300 // room for any name
	a.negotiated, a.buffers, a.chunk = true, 1, chunk
	a.size = rapid.OneOf(rapid.SampledFrom([]int64{0, 1, chunk, chunk + 1}), rapid.Int64Range(5*chunk, 20*chunk)).Draw(t, "size")
	s := &simulation{t: t, memory: make([]byte, chunk), order: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 1))}
	client, server := &s.sides[0], &s.sides[1]
	if a.protocol == Basic {
		client.machine = &basicClient{agreement: a, name: "f"}
		server.machine = &basicServer{agreement: a, buf: s.memory, region: verbs.RemoteAddr{RKey: 1}}
		client.receives, server.receives = 1, 1
	} else {
		a.buffers = rapid.IntRange(1, 6).Draw(t, "buffers")
		client.machine, server.machine = newFastClient(a, "f", nil), newFastServer(a, verbs.RemoteAddr{RKey: 1})
		client.receives, server.receives = receiveSlots(a.buffers), receiveSlots(a.buffers)
	}
	s.agreement, s.posted = a, make([]int64, max(a.buffers, basicBuffers))
	for i := range s.sides {
		s.sides[i].buffers = make([]int64, max(a.buffers, basicBuffers))
		for q := range s.pace[i] {
			s.pace[i][q] = rapid.SampledFrom([]int{1, 10, 100}).Draw(t, "pace")
		}
	}
	return s
}

// simulation is what lies between two machines, client first. A buffer holds the
// offset of the chunk in it.
type simulation struct {
	t *rapid.T
	agreement
	sides  [2]simulated
	memory []byte  // of a basic server, for what is said in it
	posted []int64 // per buffer of the client, what was in it when its write was posted
	stored int64   // bytes in the file
	named  bool    // the file has its name

	order *rand.Rand
	pace  [2][4]int // of each queue: how likely something is to happen
}

type simulated struct {
	machine  machine
	receives int // posted
	buffers  []int64
	hashed   int64 // bytes that the digest has taken in
	finished bool
	failure  error
	// What happens next, of each kind in order: the disk, the digest, messages to
	// this side, completions of its writes.
	next [4][]func()
}

const (
	queueDisk = iota
	queueDigest
	queueIncoming
	queueSent
)

// run lets things happen until both sides have finished.
func (s *simulation) run() {
	s.step(0, event{kind: evConnected})
	s.step(1, event{kind: evConnected})
	for !s.sides[0].finished || !s.sides[1].finished {
		s.happen()
	}
	for i := range s.sides {
		if err := s.sides[i].failure; err != nil {
			s.t.Errorf("side %d: %v", i, err)
		}
	}
	if s.stored != s.size || !s.named {
		s.t.Errorf("%d bytes of %d are stored; the file has its name: %v", s.stored, s.size, s.named)
	}
}

// happen has one thing happen.
func (s *simulation) happen() {
	var next *[]func()
	total := 0
	for i := range s.sides {
		for q := range s.sides[i].next {
			queue := &s.sides[i].next[q]
			if len(*queue) == 0 {
				continue
			}
			if total += s.pace[i][q]; s.order.IntN(total) < s.pace[i][q] {
				next = queue
			}
		}
	}
	if next == nil {
		s.t.Fatalf("nothing happens any more; the client awaits %s, the server %s", s.sides[0].machine.awaits(), s.sides[1].machine.awaits())
	}
	f := (*next)[0]
	*next = (*next)[1:]
	f()
}

func (s *simulation) later(side, queue int, f func()) {
	s.sides[side].next[queue] = append(s.sides[side].next[queue], f)
}

// step gives an event to a machine and carries out its actions.
func (s *simulation) step(side int, ev event) {
	if s.sides[side].finished {
		return
	}
	for _, a := range slices.Clone(s.sides[side].machine.step(ev, nil)) {
		a.msg = bytes.Clone(a.msg)
		s.act(side, a)
	}
}

func (s *simulation) act(side int, a action) {
	me := &s.sides[side]
	switch a.kind {
	case actReceive:
		me.receives++
	case actSend:
		s.later(1-side, queueIncoming, func() { s.arrive(side, a, event{kind: evReceived, data: a.msg, n: len(a.msg)}) })
	case actWrite:
		s.posted[a.slot] = me.buffers[a.slot]
		s.later(1-side, queueIncoming, func() { s.write(side, a) })
	case actRead:
		s.later(side, queueDisk, func() {
			me.buffers[a.slot] = a.offset
			s.step(side, event{kind: evRead, slot: a.slot, n: a.n})
		})
	case actHash:
		s.later(side, queueDigest, func() {
			s.want(side, a.slot, me.hashed, "hashed")
			me.hashed += int64(a.n)
			s.step(side, event{kind: evHashed, slot: a.slot, n: a.n})
		})
	case actSum:
		s.later(side, queueDigest, func() { s.step(side, event{kind: evSummed}) })
	case actStore:
		s.later(side, queueDisk, func() {
			s.want(side, a.slot, a.offset, "stored")
			s.stored += int64(a.n)
			s.step(side, event{kind: evStored, slot: a.slot, n: a.n})
		})
	case actOpen:
		s.later(side, queueDisk, func() { s.step(side, event{kind: evOpened}) })
	case actCommit:
		s.later(side, queueDisk, func() {
			s.named = true
			s.step(side, event{kind: evCommitted})
		})
	case actFinish:
		me.finished, me.failure = true, a.err
		s.later(1-side, queueIncoming, func() { s.step(1-side, event{kind: evEnded}) })
	default: // actAdvance is for observers
	}
}

// want checks that a buffer still has the chunk that it should.
func (s *simulation) want(side, slot int, offset int64, what string) {
	if got := s.sides[side].buffers[slot]; got != offset {
		s.t.Fatalf("side %d: the chunk at %d is %s when its buffer %d has that at %d", side, offset, what, slot, got)
	}
}

// write is a write that reaches the server.
func (s *simulation) write(side int, a action) {
	if a.msg != nil {
		copy(s.memory, a.msg)
	} else if a.n > 0 {
		s.sides[1].buffers[a.remote.Addr/uint64(s.chunk)] = s.sides[0].buffers[a.slot]
	}
	if a.hasImm {
		s.arrive(side, a, event{kind: evReceived, hasImm: true, imm: a.imm})
	}
}

// arrive is a message that reaches the other side.
func (s *simulation) arrive(from int, a action, ev event) {
	to := &s.sides[1-from]
	if to.receives--; to.receives < 0 && !to.finished {
		s.t.Fatalf("side %d: a message meets no receive", 1-from)
	}
	if a.slot != none {
		posted := s.posted[a.slot]
		s.later(from, queueSent, func() {
			s.want(from, a.slot, posted, "sent")
			s.step(from, event{kind: evSent, slot: a.slot})
		})
	}
	s.step(1-from, ev)
}
