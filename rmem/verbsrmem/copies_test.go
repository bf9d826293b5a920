package verbsrmem

import (
	"bytes"
	"testing"

	"cinnabar/verbs/iwarp"
)

// TestVerbsNoCopies writes and reads a region over a device that counts the bytes which it copies: none, in either direction,
// nor does the protocol copy more than the requests.
// parity: S23
func TestVerbsNoCopies(t *testing.T) {
	dev, err := iwarp.Open(iwarp.Config{NoCRC: true}) // with it, the source of a read is copied once
	must(t, err)
	closing(t, dev)
	c := verbsClient(t, dev)
	const size = 1 << 20
	r := alloc(t, c, size)
	data, back := bytes.Repeat([]byte("no copy!"), size/8), make([]byte, size)
	if n, err := r.WriteAt(data, 0); n != size || err != nil {
		t.Fatal(n, err)
	}
	if n, err := r.ReadAt(back, 0); n != size || err != nil || !bytes.Equal(back, data) {
		t.Fatal(n, err)
	}
	st := dev.Stats()
	for _, name := range []string{"tx_staged_bytes", "rx_staged_bytes", "rx_held_bytes"} {
		if st[name] != 0 {
			t.Errorf("%s is %d", name, st[name])
		}
	}
}
