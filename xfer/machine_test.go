package xfer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"cinnabar/verbs"
)

// The machines as tables of (state, event) to (state, actions), in files: each
// command is an event, its result the actions and what is awaited next.
//
//	basic-client, basic-server, fast-client, fast-server
//	    make a machine: size= chunk= buffers= imm negotiated digest
//	connected, sent slot=, read slot= n= crc= err=, stored slot= err=, hashed slot=,
//	summed byte=, opened err=, committed err=, ended err=, stopped err=
//	    what the driver tells
//	message ..., imm n=, size n=, garbage n=, buffer text=
//	    what the peer does
//
// parity: B23
func TestMachines(t *testing.T) {
	datadriven.Walk(t, "testdata/machines", func(t *testing.T, path string) {
		var b bench
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return b.do(t, d) })
	})
}

// bench is where a machine is tried.
type bench struct {
	m   machine
	buf []byte // of a basic server
}

func (b *bench) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "basic-client", "basic-server", "fast-client", "fast-server":
		b.make(d, scanAgreement(t, d))
		return "awaits " + b.m.awaits() + "\n"
	case "buffer":
		copy(b.buf, unescape(argString(t, d, "text")))
		return ""
	}
	acts := b.m.step(b.scanEvent(t, d), nil)
	var out strings.Builder
	for _, a := range acts {
		out.WriteString(describe(a) + "\n")
	}
	return out.String() + "awaits " + b.m.awaits() + "\n"
}

func (b *bench) make(d *datadriven.TestData, a agreement) {
	region := verbs.RemoteAddr{Addr: 0x1000, RKey: 7}
	switch d.Cmd {
	case "basic-client":
		b.m = &basicClient{agreement: a, name: "test-file"}
	case "basic-server":
		b.buf = make([]byte, a.chunk)
		b.m = &basicServer{agreement: a, buf: b.buf, region: region}
	case "fast-client":
		b.m = newFastClient(a, "test-file", nil)
	case "fast-server":
		b.m = newFastServer(a, region)
	}
}

func scanAgreement(t *testing.T, d *datadriven.TestData) agreement {
	a := agreement{buffers: max(argInt(t, d, "buffers"), 1), chunk: argInt(t, d, "chunk"), size: int64(argInt(t, d, "size")),
		imm: d.HasArg("imm"), negotiated: d.HasArg("negotiated"), digest: NoDigest}
	if d.HasArg("digest") {
		a.digest = SHA256
	}
	return a
}

var eventKinds = map[string]eventKind{"connected": evConnected, "sent": evSent, "read": evRead, "stored": evStored, "hashed": evHashed,
	"summed": evSummed, "opened": evOpened, "committed": evCommitted, "ended": evEnded, "stopped": evStopped}

func (b *bench) scanEvent(t *testing.T, d *datadriven.TestData) event {
	ev := event{kind: evReceived, slot: argInt(t, d, "slot"), n: argInt(t, d, "n"), crc: uint32(argInt(t, d, "crc"))}
	switch d.Cmd {
	case "imm":
		ev.hasImm, ev.imm, ev.n = true, uint32(ev.n), 0
		return ev
	case "size":
		ev.data = binary.BigEndian.AppendUint32(nil, uint32(ev.n))
	case "garbage":
		ev.data = make([]byte, ev.n)
	case "message":
		if _, ok := b.m.(*basicClient); ok {
			ev.data = basicBytes(d.CmdArgs[0].Key)
		} else {
			ev.data = fastBytes(t, d)
		}
	default:
		kind, ok := eventKinds[d.Cmd]
		if !ok {
			d.Fatalf(t, "unknown command")
		}
		ev.kind = kind
		ev.sum[0] = byte(argInt(t, d, "byte"))
		if d.HasArg("err") {
			ev.err = failf(CodeOther, "%s", argString(t, d, "err"))
		}
		return ev
	}
	ev.n = len(ev.data)
	return ev
}

// why is what peers fail with.
var why = errorMessage{CodeStorage, "disk full"}

// basicBytes are the bytes of a server's message.
func basicBytes(name string) []byte {
	m := basicMessage{remote: verbs.RemoteAddr{Addr: 0x7f9402d01000, RKey: 0x29f}, why: why}
	for m.id = basicMR; basicName(m.id) != name; m.id++ {
	}
	return appendBasic(nil, m)
}

// fastBytes are the bytes of a message of either side.
func fastBytes(t *testing.T, d *datadriven.TestData) []byte {
	m := fastMessage{number: uint64(argInt(t, d, "number")), length: uint32(argInt(t, d, "length")),
		word: uint32(argInt(t, d, "word")), count: uint32(argInt(t, d, "count"))}
	m.kind = uint16(slices.Index(fastNames[:], d.CmdArgs[0].Key))
	switch {
	case m.kind == fastFailed:
		m.tail = appendErrorMessage(nil, why, maxErrorMessage)
	case d.HasArg("byte"):
		m.tail = make([]byte, 32)
		m.tail[0] = byte(argInt(t, d, "byte"))
	case d.HasArg("name"):
		m.tail = []byte(unescape(argString(t, d, "name")))
	}
	return appendFast(nil, m)
}

func argInt(t *testing.T, d *datadriven.TestData, key string) int {
	var n int
	d.MaybeScanArgs(t, key, &n)
	return n
}

func argString(t *testing.T, d *datadriven.TestData, key string) string {
	var s string
	d.MaybeScanArgs(t, key, &s)
	return s
}

// unescape puts in what the script's syntax has no room for.
func unescape(s string) string {
	return strings.NewReplacer(`\0`, "\x00", `\2`, "\x02", `\4`, "\x04", `\s`, " ", `\empty`, "").Replace(s)
}

// describe prints an action as the scripts have it.
func describe(a action) string {
	switch a.kind {
	case actReceive:
		return fmt.Sprintf("post receive %d", a.slot)
	case actSend:
		return describeMessage(a)
	case actWrite:
		s := fmt.Sprintf("write %d bytes of buffer %d to %#x key %#x", a.n, a.slot, a.remote.Addr, a.remote.RKey)
		if a.msg != nil {
			s += fmt.Sprintf(" filled with %q", a.msg)
		}
		if a.hasImm {
			s += fmt.Sprintf(" immediate %d", a.imm)
		}
		return s
	case actRead:
		return fmt.Sprintf("read %d bytes at %d into buffer %d", a.n, a.offset, a.slot)
	case actHash:
		return fmt.Sprintf("hash %d bytes of buffer %d", a.n, a.slot)
	case actSum:
		return "sum"
	case actOpen:
		return fmt.Sprintf("open %q", a.msg)
	case actStore:
		return fmt.Sprintf("store %d bytes of buffer %d at %d, crc %d", a.n, a.slot, a.offset, a.crc)
	case actCommit:
		return "commit"
	case actWant:
		return "want"
	case actSpare:
		return fmt.Sprintf("spare %#b from %d", a.crc, a.offset)
	case actKeep:
		return fmt.Sprintf("keep %d", a.offset)
	case actAdvance:
		return fmt.Sprintf("advance %d", a.n)
	case actFinish:
		return fmt.Sprintf("finish: %v", a.err)
	}
	return "?"
}

// describeMessage prints a message in hexadecimal, a refusal in words.
func describeMessage(a action) string {
	s := fmt.Sprintf("send %s % x", a.label, a.msg)
	if a.label == "FAILED" {
		at := 8 // of the error message in a basic message
		if a.msg[0] == fastFailed {
			at = fastLen
		}
		v, _ := parseErrorMessage(a.msg[at:])
		s = fmt.Sprintf("send FAILED %d %q", v.code, v.text)
	}
	if a.slot != none {
		s += fmt.Sprintf(", frees buffer %d", a.slot)
	}
	return s
}

// Every event in every state that a short transfer goes through is survived:
// nothing panics, and a machine that has finished on a wrong event says why.
// parity: B23
func TestMachinesSurviveAnyEvent(t *testing.T) {
	for name, start := range map[string]func() machine{
		"basic client": func() machine {
			return &basicClient{agreement: agreement{chunk: 4096, size: 4097, negotiated: true, buffers: 1}, name: "f"}
		},
		"basic server": func() machine {
			return &basicServer{agreement: agreement{chunk: 4096, size: 4097, negotiated: true, buffers: 1}, buf: append([]byte("f\x00"), make([]byte, 4094)...)}
		},
		"fast client": func() machine { return newFastClient(agreement{chunk: 4096, size: 4097, buffers: 2}, "f", nil) },
		"fast server": func() machine {
			return newFastServer(agreement{chunk: 4096, size: 4097, buffers: 2}, verbs.RemoteAddr{})
		},
	} {
		t.Run(name, func(t *testing.T) { surviveAll(t, start, nil, 4) })
	}
}

// peerEvents is what a peer may do at any time, and what the driver may tell
// of the connection.
var peerEvents = []event{
	{kind: evConnected},
	{kind: evReceived, data: appendBasic(nil, basicMessage{id: basicMR, remote: verbs.RemoteAddr{Addr: 1}}), n: 24},
	{kind: evReceived, data: appendBasic(nil, basicMessage{id: basicReady}), n: 24},
	{kind: evReceived, data: appendBasic(nil, basicMessage{id: basicDone}), n: 24},
	{kind: evReceived, data: appendBasic(nil, basicMessage{id: basicFailed}), n: 24},
	{kind: evReceived, hasImm: true, imm: 2},
	{kind: evReceived, hasImm: true, imm: 1<<32 - 1},
	{kind: evReceived, data: []byte{0, 0, 0, 2}, n: 4},
	{kind: evReceived, data: []byte{0, 0, 16, 0}, n: 4},
	{kind: evReceived, data: []byte{0, 0, 0, 0}, n: 4},
	{kind: evReceived, data: []byte{255, 255, 255, 255}, n: 4},
	{kind: evReceived},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}), n: 25},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastLayout, length: 4096, count: 2}), n: 24},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastChunk, length: 4096}), n: 24},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastChunk, length: 1, number: 1}), n: 24},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastCredit, number: 1}), n: 24},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastCredit, number: 1 << 63}), n: 24},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastEnd, number: 4097, tail: make([]byte, 32)}), n: 56},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastDone, number: 4097, tail: make([]byte, 32)}), n: 56},
	{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastFailed}), n: 24},
	{kind: evEnded, err: errors.New("reset")},
	{kind: evStopped, err: context.Canceled},
}

// answers are the driver's events that an action leads to.
func answers(a action) (event, bool) {
	switch a.kind {
	case actWrite:
		return event{kind: evSent, slot: a.slot}, a.hasImm
	case actSend:
		return event{kind: evSent, slot: a.slot}, a.slot != none
	case actRead:
		return event{kind: evRead, slot: a.slot, n: a.n}, true
	case actStore:
		return event{kind: evStored, slot: a.slot}, true
	case actHash:
		return event{kind: evHashed, slot: a.slot}, true
	case actSum:
		return event{kind: evSummed}, true
	case actOpen:
		return event{kind: evOpened}, true
	case actCommit:
		return event{kind: evCommitted}, true
	default: // the others have no result
		return event{}, false
	}
}

// replay runs a machine through a history of the peer's events, answering its
// actions at once, and reports whether it has finished.
func replay(t *testing.T, m machine, history []event) bool {
	t.Helper()
	for _, ev := range history {
		todo := []event{ev}
		for len(todo) > 0 {
			acts := m.step(todo[0], nil)
			todo = todo[1:]
			for _, a := range acts {
				if a.kind == actFinish {
					if a.err != nil && a.err.Error() == "" {
						t.Error("a failure without words")
					}
					return true
				}
				if ev, ok := answers(a); ok {
					todo = append(todo, ev)
				}
			}
		}
		_ = m.awaits()
	}
	return false
}

// surviveAll tries all histories of up to depth events.
func surviveAll(t *testing.T, start func() machine, history []event, depth int) {
	t.Helper()
	for _, ev := range peerEvents {
		next := append(history[:len(history):len(history)], ev)
		if !replay(t, start(), next) && depth > 1 {
			surviveAll(t, start, next, depth-1)
		}
	}
}
