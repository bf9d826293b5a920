package cinnabar

import (
	"encoding/hex"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
)

// TestPayloads compares payloads with those of C: "sum" of Margo, of Mercury and of Thallium.
func TestPayloads(t *testing.T) {
	m := NewRPC[addIn, addOut]("sum").proc
	plain := NewRPC[addIn, addOut]("sum", WithFlavor(Mercury)).proc
	for _, test := range []struct {
		proc        *procedure
		id          uint64
		input, want string
	}{
		{m, 0x1c8857ad0000ffff, "ffff0000000000000100000002000000", "0000000003000000"},
		{plain, 0x0b88ab9a, "0100000002000000", "03000000"},
		{NewRPC[addIn, addOut]("sum", WithFlavor(Thallium)).proc, 0x1c8857ad00000000, "ffff0000000000000100000002000000", "0000000003000000"},
	} {
		if got := test.proc.id(test.proc.flavor.defaultProvider()); got != test.id {
			t.Errorf("%s: id %#x, want %#x", test.proc.flavor.name(), got, test.id)
		}
		in, err := test.proc.appendInput(nil, wire.NoParent, &addIn{X: 1, Y: 2}, hg.OverNetwork)
		if got := hex.EncodeToString(in); err != nil || got != test.input {
			t.Errorf("%s: input %s, %v, want %s", test.proc.flavor.name(), got, err, test.input)
		}
		out, err := test.proc.appendOutput(nil, &addOut{Sum: 3}, hg.OverNetwork)
		if got := hex.EncodeToString(out); err != nil || got != test.want {
			t.Errorf("%s: output %s, %v, want %s", test.proc.flavor.name(), got, err, test.want)
		}
		for n := range in {
			if _, err := test.proc.decodeInput(in[:n], new(addIn), hg.OverNetwork, false); err == nil {
				t.Errorf("%s: %d bytes of input are accepted", test.proc.flavor.name(), n)
			}
		}
		for n := range out {
			if _, err := test.proc.decodeOutput(out[:n], new(addOut), hg.OverNetwork, false); err == nil {
				t.Errorf("%s: %d bytes of output are accepted", test.proc.flavor.name(), n)
			}
		}
	}
}

// TestKeepIsTriedAgain decodes a large message without a part that is at least half of it. Later messages are received in memory of their own again, because the
// shape of one client's messages must not decide for all clients.
func TestKeepIsTriedAgain(t *testing.T) {
	type two struct {
		A []byte `proc:"counted=uint64"`
		B []byte `proc:"counted=uint64"`
	}
	p := NewRPC[two, struct{}]("two").proc
	message := func(a, b int) []byte {
		m, err := p.appendInput(nil, wire.NoParent, &two{make([]byte, a), make([]byte, b)}, hg.OverNetwork)
		must(t, err)
		return m
	}
	even, odd := message(hg.LargePayload, hg.LargePayload), message(hg.LargePayload, 1)
	decode := func(b []byte) {
		_, err := p.decodeInput(b, new(two), hg.OverNetwork, p.in.keep() && len(b) >= hg.LargePayload)
		must(t, err)
	}
	for range 2 {
		decode(odd)
		if !p.in.keep() {
			t.Fatal("a kept message is followed by one in memory that is used again")
		}
		decode(even)
		for i := range keepRetry {
			if p.in.keep() {
				t.Fatalf("message %d after a copied one is received in memory of its own", i)
			}
			decode(odd)
			decode(message(1, 1)) // small messages do not count
		}
		if !p.in.keep() {
			t.Fatal("no message is received in memory of its own any more")
		}
		if _, err := p.decodeInput(even[:len(even)-1], new(two), hg.OverNetwork, true); err == nil {
			t.Fatal("a message that is too short is accepted")
		} else if !p.in.keep() {
			t.Fatal("a malformed message counts")
		}
	}
}

// TestRefusalOfC reads what C's Margo answers when a name has no handler.
// parity(recorded): G38
func TestRefusalOfC(t *testing.T) {
	m := NewRPC[addIn, addOut]("nullhandler").proc
	code, err := m.decodeOutput([]byte{2, 0, 0, 0}, new(addOut), hg.OverNetwork, false)
	if err != nil || code != codes.NoEntry {
		t.Errorf("%v, %v", code, err)
	}
}
