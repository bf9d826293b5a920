package ddp

import (
	"strings"
	"testing"
)

// step is one segment of a scenario: what is sent and what has to come of it.
type step struct {
	h       Header
	payload int
	first   bool
	offset  uint32 // tagged only
	err     string // substring of the error, "" for none
}

func runQueue(t *testing.T, q *Queue, limit uint32, steps []step) {
	t.Helper()
	for i, s := range steps {
		s.h.Version = Version
		before := *q
		first, err := q.Segment(s.h, s.payload, limit)
		checkStep(t, i, s, first, err)
		if err != nil && *q != before {
			t.Errorf("step %d: refused, but the queue went from %+v to %+v", i, before, *q)
		}
	}
}

func runTagged(t *testing.T, m *Tagged, steps []step) {
	t.Helper()
	for i, s := range steps {
		s.h.Version, s.h.Tagged = Version, true
		before := *m
		offset, first, err := m.Segment(s.h, s.payload)
		checkStep(t, i, s, first, err)
		if err == nil && offset != s.offset {
			t.Errorf("step %d: got offset %d, want %d", i, offset, s.offset)
		}
		if err != nil && *m != before {
			t.Errorf("step %d: refused, but the state went from %+v to %+v", i, before, *m)
		}
	}
}

func checkStep(t *testing.T, i int, s step, first bool, err *Error) {
	t.Helper()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if first != s.first || s.err == "" && err != nil || !strings.Contains(text, s.err) {
		t.Errorf("step %d: got first %t, error %q, want %t, %q", i, first, text, s.first, s.err)
	}
}

func TestQueue(t *testing.T) {
	const limit = 100
	tests := []struct {
		name  string
		queue Queue
		steps []step
	}{
		{
			name: "single segments",
			steps: []step{
				{h: Header{Last: true, MSN: 1}, payload: 100, first: true},
				{h: Header{Last: true, MSN: 2}, payload: 1, first: true},
				{h: Header{Last: true, MSN: 3}, first: true},
			},
		},
		{
			name: "segmented",
			steps: []step{
				{h: Header{MSN: 1}, payload: 40, first: true},
				{h: Header{MSN: 1, MO: 40}, payload: 40},
				{h: Header{MSN: 1, MO: 80, Last: true}, payload: 20},
				{h: Header{MSN: 2, Last: true}, payload: 20, first: true},
			},
		},
		{
			name: "empty last segment",
			steps: []step{
				{h: Header{MSN: 1}, payload: 40, first: true},
				{h: Header{MSN: 1, MO: 40, Last: true}},
			},
		},
		{
			name: "empty intermediate segment",
			steps: []step{
				{h: Header{MSN: 1}, err: "payload of an intermediate segment is 0"},
				{h: Header{MSN: 1}, payload: 1, first: true},
				{h: Header{MSN: 1, MO: 1}, err: "invalid message offset"},
			},
		},
		{
			name: "negative payload",
			steps: []step{
				{h: Header{MSN: 1, Last: true}, payload: -1, err: "invalid message offset"},
			},
		},
		{
			name:  "first message must be 1",
			steps: []step{{h: Header{Last: true}, payload: 1, err: "MSN is 0, want 1"}},
		},
		{
			name: "repeated and skipped message",
			steps: []step{
				{h: Header{Last: true, MSN: 1}, payload: 1, first: true},
				{h: Header{Last: true, MSN: 1}, payload: 1, err: "MSN is 1, want 2"},
				{h: Header{Last: true, MSN: 3}, payload: 1, err: "MSN is 3, want 2"},
			},
		},
		{
			name: "interleaved messages",
			steps: []step{
				{h: Header{MSN: 1}, payload: 1, first: true},
				{h: Header{MSN: 2}, payload: 1, err: "MSN is 2, want 1"},
			},
		},
		{
			name: "hole and overlap",
			steps: []step{
				{h: Header{MSN: 1, MO: 1}, payload: 1, err: "MO is 1, want 0"},
				{h: Header{MSN: 1}, payload: 10, first: true},
				{h: Header{MSN: 1, MO: 11}, payload: 1, err: "MO is 11, want 10"},
				{h: Header{MSN: 1, MO: 9}, payload: 1, err: "MO is 9, want 10"},
			},
		},
		{
			name: "too long at once and piece by piece",
			steps: []step{
				{h: Header{MSN: 1, Last: true}, payload: 101, err: "message length is 101, limit 100"},
				{h: Header{MSN: 1}, payload: 60, first: true},
				{h: Header{MSN: 1, MO: 60}, payload: 41, err: "message length is 101, limit 100"},
			},
		},
		{
			name:  "MSN wraps to 0",
			queue: Queue{delivered: 1<<32 - 2},
			steps: []step{
				{h: Header{MSN: 1<<32 - 1, Last: true}, payload: 1, first: true},
				{h: Header{MSN: 0, Last: true}, payload: 1, first: true},
				{h: Header{MSN: 1, Last: true}, payload: 1, first: true},
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { runQueue(t, &test.queue, limit, test.steps) })
	}
}

func TestQueueLongestMessage(t *testing.T) {
	q := Queue{offset: MaxMessage - 1, open: true}
	runQueue(t, &q, MaxMessage, []step{
		{h: Header{MSN: 1, MO: MaxMessage - 1}, payload: 2, err: "message length is 4294967296, limit 4294967295"},
		{h: Header{MSN: 1, MO: MaxMessage - 1, Last: true}, payload: 1},
	})
	if q.Open() || q.Next() != 2 {
		t.Errorf("got open %t, next %d, want false, 2", q.Open(), q.Next())
	}
}

func TestTagged(t *testing.T) {
	tests := []struct {
		name   string
		tagged Tagged
		steps  []step
	}{
		{
			name: "one message after the other",
			steps: []step{
				{h: Header{Last: true, STag: 5, TO: 0x1000}, payload: 100, first: true},
				{h: Header{Last: true, STag: 6}, payload: 1, first: true},
				{h: Header{Last: true, STag: 5, TO: 0x10}, payload: 1, first: true},
			},
		},
		{
			name: "segmented",
			steps: []step{
				{h: Header{STag: 5, TO: 0x1000}, payload: 0x10, first: true},
				{h: Header{STag: 5, TO: 0x1010}, payload: 0x10, offset: 0x10},
				{h: Header{STag: 5, TO: 0x1020, Last: true}, payload: 1, offset: 0x20},
			},
		},
		{
			name: "nothing of an empty message is looked at",
			steps: []step{
				{h: Header{Last: true, STag: 1, TO: 1<<64 - 1}, first: true},
				{h: Header{STag: 5}, payload: 1, first: true},
				{h: Header{STag: 9, TO: 77, Last: true}, offset: 1},
			},
		},
		{
			name: "empty intermediate segment",
			steps: []step{
				{h: Header{STag: 5}, err: "payload of an intermediate segment is 0x0"},
				{h: Header{STag: 5, Last: true}, payload: -1, err: "base or bounds"},
			},
		},
		{
			name: "another buffer in mid-message",
			steps: []step{
				{h: Header{STag: 5}, payload: 1, first: true},
				{h: Header{STag: 6, TO: 1}, payload: 1, err: "STag is 0x6, want 0x5"},
			},
		},
		{
			name: "hole and overlap",
			steps: []step{
				{h: Header{STag: 5, TO: 0x10}, payload: 0x10, first: true},
				{h: Header{STag: 5, TO: 0x21}, payload: 1, err: "TO is 0x21, want 0x20"},
				{h: Header{STag: 5, TO: 0x1f}, payload: 1, err: "TO is 0x1f, want 0x20"},
			},
		},
		{
			name: "offset wraps",
			steps: []step{
				{h: Header{STag: 5, TO: 1<<64 - 8, Last: true}, payload: 8, err: "payload is 0x8, limit 0x7"},
				{h: Header{STag: 5, TO: 1<<64 - 8, Last: true}, payload: 7, first: true},
			},
		},
		{
			name:   "too long",
			tagged: Tagged{stag: 5, to: 0x10, length: MaxMessage - 1, open: true},
			steps: []step{
				{h: Header{STag: 5, TO: 0x10}, payload: 2, err: "message length is 0x100000000, limit 0xffffffff"},
				{h: Header{STag: 5, TO: 0x10, Last: true}, payload: 1, offset: MaxMessage - 1},
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { runTagged(t, &test.tagged, test.steps) })
	}
}

func TestErrorText(t *testing.T) {
	h := Header{Version: Version, QN: 2, MSN: 3, MO: 4}
	tagged := Header{Tagged: true, Version: 2, STag: 0xdeadbeef, TO: 0x1000}
	tests := []struct {
		err  *Error
		want string
	}{
		{h.CheckQueue(2), "ddp: untagged buffer error: invalid queue number: queue number is 2, limit 1 (queue 2, MSN 3, MO 4)"},
		{tagged.CheckVersion(), "ddp: tagged buffer error: invalid DDP version: version is 0x2, want 0x1 (STag 0xdeadbeef, TO 0x1000)"},
		{&Error{Type: 9, Code: 7, Field: "x"}, "ddp: error type 0x9: code 0x07: x is 0, want 0 (queue 0, MSN 0, MO 0)"},
	}
	for _, test := range tests {
		if got := test.err.Error(); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
	if err := h.CheckQueue(3); err != nil {
		t.Errorf("queue 2 of 3: got %v, want nil", err)
	}
	if err := h.CheckVersion(); err != nil {
		t.Errorf("version 1: got %v, want nil", err)
	}
}

// FuzzMessage plays random segments: no panic, and what was taken obeys the
// invariants of the states.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{0xc1, 0x01, 0x00, 0x41, 0x01, 0x10}, uint32(64))
	f.Fuzz(func(t *testing.T, script []byte, limit uint32) {
		var q Queue
		var m Tagged
		for ; len(script) >= 3; script = script[3:] {
			h := Header{Tagged: script[0]&0x80 != 0, Last: script[0]&0x40 != 0, Version: Version}
			payload := int(script[2])
			if h.Tagged {
				h.STag, h.TO = uint32(script[1]>>4), m.to+uint64(script[1]&3)
				if _, _, err := m.Segment(h, payload); err == nil && m.Open() == h.Last {
					t.Fatalf("%+v left %+v", h, m)
				}
				continue
			}
			h.MSN, h.MO = q.Next()+uint32(script[1]>>7), q.offset+uint32(script[1]&3)
			if _, err := q.Segment(h, payload, limit); err == nil && (q.Open() == h.Last || q.offset > limit) {
				t.Fatalf("%+v left %+v with limit %d", h, q, limit)
			}
		}
	})
}
