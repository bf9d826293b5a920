package main

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"cinnabar/verbs"
)

// Sizes in bytes, and the messages of a turn.
const (
	slots   = 16
	maxSize = 1 << 20
	guard   = 64 // bytes behind a message that must not change
	stride  = maxSize + guard
)

const (
	golden    = 0x9e3779b97f4a7c15
	guardByte = 0xa5
)

// mix is the output function of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// ops are the operations of messages, by their number in the generator.
var ops = [...]verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead}

var opNames = [...]string{"sends", "writes", "reads"}

// message is one message of a turn.
type message struct {
	op     int // of ops
	size   int
	number uint64 // in the whole conversation
}

// turns draws the messages, turn by turn; both sides draw the same.
type turns struct {
	random uint64
	drawn  uint64 // messages so far
	count  uint64 // messages in all
}

func newTurns(seed, count uint64) turns { return turns{random: mix(seed), count: count} }

func (g *turns) next() uint64 {
	g.random += golden
	return mix(g.random)
}

// draw returns the messages of the next turn, none at the end. Sizes have every
// order of magnitude. Reads have a byte at least: siw answers one of nothing that
// waits behind another with as many bytes as that one (siw_activate_tx).
func (g *turns) draw() []message {
	left := g.count - g.drawn
	if left == 0 {
		return nil
	}
	turn := make([]message, min(1+g.next()%slots, left))
	for k := range turn {
		turn[k].op = int(g.next() % uint64(len(ops)))
		order := g.next() % 21
		turn[k].size = int(g.next() % (1<<order + 1))
		if ops[turn[k].op] == verbs.OpRead {
			turn[k].size = max(turn[k].size, 1)
		}
		turn[k].number = g.drawn
		g.drawn++
	}
	return turn
}

// fill makes a message's bytes in b, which has its size.
func fill(seed uint64, m message, b []byte) {
	word := mix(seed ^ (m.number+1)*golden)
	var last [8]byte
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, mix(word))
		word += golden
	}
	binary.LittleEndian.PutUint64(last[:], mix(word))
	copy(b, last[:])
}

// mark fills the guard behind a message that is expected in slot.
func mark(m message, slot []byte) {
	for i := range guard {
		slot[m.size+i] = guardByte
	}
}

// checker compares messages with the pattern.
type checker struct {
	seed uint64
	want []byte // scratch of maxSize bytes
}

func newChecker(seed uint64) *checker { return &checker{seed: seed, want: make([]byte, maxSize)} }

// check returns the first difference of a message in slot, as an error.
func (c *checker) check(m message, slot []byte) error {
	want := c.want[:m.size]
	fill(c.seed, m, want)
	if !bytes.Equal(slot[:m.size], want) {
		for i := range want {
			if slot[i] != want[i] {
				return fmt.Errorf("message %d of %d bytes (%s): byte %d is %#x, want %#x", m.number, m.size, opNames[m.op], i, slot[i], want[i])
			}
		}
	}
	for i, b := range slot[m.size : m.size+guard] {
		if b != guardByte {
			return fmt.Errorf("message %d of %d bytes (%s): byte %d behind it was written to", m.number, m.size, opNames[m.op], i)
		}
	}
	return nil
}
