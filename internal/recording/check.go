package recording

import (
	"fmt"
	"maps"
	"slices"
)

// Checker compares the messages of one side with those of a conversation, as a Player of the other side does, without a
// connection.
type Checker struct {
	messages []*Message // the messages that Next has not compared yet
	values   values
}

// NewChecker returns a Checker of the messages of the side that dialed, or of the other one.
func NewChecker(c *Conversation, fromDialer bool) *Checker {
	k := &Checker{values: values{"server": {0, 0}}}
	for i := range c.Messages {
		if m := &c.Messages[i]; m.FromDialer == fromDialer && !m.End {
			k.messages = append(k.messages, m)
		}
	}
	return k
}

// Left returns the number of messages that Next has not compared yet.
func (k *Checker) Left() int { return len(k.messages) }

// Try compares b with the next message, and keeps neither the position nor the values of fields.
func (k *Checker) Try(b []byte) error {
	again := &Checker{k.messages, maps.Clone(k.values)}
	return again.Next(b)
}

// Next compares b with the next message, and moves to the following one. Fields keep their values of b.
func (k *Checker) Next(b []byte) error {
	if len(k.messages) == 0 {
		return fmt.Errorf("%d bytes come after the last message", len(b))
	}
	m := k.messages[0]
	k.messages = k.messages[1:]
	if m.Size() != len(b) {
		return fmt.Errorf("a message has %d bytes, want %d", len(b), m.Size())
	}
	return k.values.check(m, b)
}

// Free returns true for each byte of the next message from which a field takes its value. All other bytes of it are compared.
func (k *Checker) Free() []bool {
	m := k.messages[0]
	free := make([]bool, 0, m.Size())
	known := maps.Clone(k.values)
	for i := range m.Items {
		it := &m.Items[i]
		_, bound := known[it.Name]
		learns := it.Kind == Field && !bound
		if learns {
			known[it.Name] = nil
		}
		free = append(free, slices.Repeat([]bool{learns}, it.Size)...)
	}
	return free
}
