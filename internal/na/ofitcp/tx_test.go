package ofitcp

import (
	"bytes"
	"testing"

	"cinnabar/internal/na"
)

// TestLeadOfBatch writes batches as transmit does, to a socket that accepts a given number of bytes in each call, and checks the number of
// bytes that the first call offers.
func TestLeadOfBatch(t *testing.T) {
	for _, tc := range []struct {
		name  string
		sizes []int // of the vectors
		takes int
		first int // bytes that the first call offers
	}{
		{"one small message", []int{100}, 1 << 20, 100},
		{"header and payload", []int{40, 64 << 10}, 1 << 20, (40 + 64<<10) * 2 / 3},
		{"many vectors", []int{40, 10 << 10, 40, 10 << 10, 40, 10 << 10, 40, 30 << 10}, 1 << 20, (160 + 60<<10) * 2 / 3},
		{"a vector of the size of the lead", []int{40 << 10, 20 << 10}, 1 << 20, 40 << 10},
		{"just too small", []int{leadFrom / 2, leadFrom/2 - 1}, 1 << 20, leadFrom - 1},
		{"many packets", []int{40, 1 << 20}, 2 << 20, leadLeast},
		{"a socket that takes less than the lead", []int{40, 64 << 10}, 1000, (40 + 64<<10) * 2 / 3},
		{"a socket that takes a part of the header", []int{40, 64 << 10}, 16, (40 + 64<<10) * 2 / 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &conn{}
			c.wmu.Lock()
			defer c.wmu.Unlock()
			tx := &c.tx
			tx.init()
			for batch := range 2 { // the second begins where the first has ended
				var all, got []byte
				tx.iov, tx.at, tx.begin = tx.iov[:0], 0, tx.queued
				for i, n := range tc.sizes {
					b := random(n, uint64(i+batch))
					all = append(all, b...)
					tx.add(b)
				}
				for call := 0; tx.at < len(tx.iov); call++ {
					offered := bytes.Join(tx.next(), nil)
					if call == 0 && len(offered) != tc.first {
						t.Fatalf("batch %d: the first call offers %d bytes, want %d", batch, len(offered), tc.first)
					}
					if call == 1 && len(offered) != len(all)-len(got) {
						t.Fatalf("batch %d: the second call offers %d bytes of %d", batch, len(offered), len(all)-len(got))
					}
					n := min(tc.takes, len(offered))
					got = append(got, offered[:n]...)
					c.wrote(n)
				}
				if !bytes.Equal(got, all) {
					t.Errorf("batch %d: other bytes were offered", batch)
				}
			}
		})
	}
}

// TestLeadIsWritten makes a transfer, whose batch is large: the connection has written the first bytes by a call of their own.
func TestLeadIsWritten(t *testing.T) {
	owner, user := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	_, remote := expose(t, owner, user, make([]byte, 64<<10), na.ReadWrite)
	op := newCall()
	user.Put(&op.op, to, []na.Fragment{{Remote: remote, Local: random(64<<10, 1)}})
	if err := op.wait(t, user, to); err != nil {
		t.Fatal(err)
	}
	c := user.peer(owner.self).conn.Load()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if len(c.tx.lead) == 0 {
		t.Error("the first call of a large batch has offered all bytes")
	}
}
