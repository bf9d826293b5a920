package ofitcp

import (
	"bytes"
	"testing"

	"cinnabar/internal/na"
)

// TestTransfersAreNotCopied counts the bytes of transfers that user space copies: at the side where data arrives at most
// those that came with a message's header, which the stage holds, and none at the other side.
// parity: S23
func TestTransfersAreNotCopied(t *testing.T) {
	const size, rounds = 1 << 20, 8
	owner, user := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	theirs, mine := random(size, 1), make([]byte, size)
	_, remote := expose(t, owner, user, theirs, na.ReadWrite)
	for _, tc := range []struct {
		name            string
		put             bool
		receives, sends *Endpoint
	}{
		{"get", false, user, owner}, {"put", true, owner, user},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at, from := tc.receives.Stats(), tc.sends.Stats()
			for range rounds {
				op := newCall()
				frags := []na.Fragment{{Remote: remote, Local: mine}}
				if tc.put {
					user.Put(&op.op, to, frags)
				} else {
					user.Get(&op.op, to, frags)
				}
				if err := op.wait(t, user, to); err != nil || op.op.N != size {
					t.Fatalf("%d bytes, %v", op.op.N, err)
				}
			}
			if !bytes.Equal(theirs, mine) {
				t.Error("other bytes have arrived")
			}
			after := tc.receives.Stats()
			messages := after.WritesReceived - at.WritesReceived
			if !tc.put { // as many answers
				messages = tc.sends.Stats().ReadsReceived - from.ReadsReceived
			}
			if got, most := after.TransferBytesStaged-at.TransferBytesStaged, stageBytes+messages*bulkRead; got > most || most > rounds*size/8 {
				t.Errorf("%d bytes of %d in %d messages were copied, want at most %d", got, rounds*size, messages, most)
			}
			if got := tc.sends.Stats().TransferBytesStaged - from.TransferBytesStaged; got != 0 {
				t.Errorf("%d bytes were copied at the side that sends", got)
			}
		})
	}
}

// TestTransfersBetweenCallsAreNotCopied makes calls between large transfers. A read of a small message must take few bytes of the transfer
// behind it, because the stage holds those bytes until they are copied.
func TestTransfersBetweenCallsAreNotCopied(t *testing.T) {
	const size, rounds = 64 << 10, 32
	owner, user := openEcho(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	_, remote := expose(t, owner, user, make([]byte, size), na.ReadWrite)
	calls, data := newClient(user, to, 0), random(size, 1)
	for range rounds {
		op := newCall()
		user.Put(&op.op, to, []na.Fragment{{Remote: remote, Local: data}})
		if err := op.wait(t, user, to); err != nil {
			t.Fatal(err)
		}
		calls.must(t, []byte("between"))
	}
	if got, most := owner.Stats().TransferBytesStaged, uint64(stageBytes+rounds*bulkRead); got > most {
		t.Errorf("%d bytes of %d were copied, want at most %d", got, rounds*size, most)
	}
}

// TestStagedTransfersAreCounted moves so little that all of it comes with the message's header.
func TestStagedTransfersAreCounted(t *testing.T) {
	owner, user := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	_, remote := expose(t, owner, user, []byte("0123456789"), na.ReadWrite)
	op := newCall()
	user.Put(&op.op, to, []na.Fragment{{Remote: remote, Local: []byte("abcdefgh")}})
	if err := op.wait(t, user, to); err != nil {
		t.Fatal(err)
	}
	if got := owner.Stats().TransferBytesStaged; got != 8 {
		t.Errorf("%d bytes were copied, want 8", got)
	}
}

// TestReadBehindPayload checks how many bytes behind a payload one read takes together with the end of that payload: few if the payload is
// large, because the next one is then probably large too and must not pass through the stage.
func TestReadBehindPayload(t *testing.T) {
	for payload, behind := range map[int]int{20 << 10: stageBytes, largePayload - 1: stageBytes, largePayload: bulkRead, 1 << 20: bulkRead} {
		c := &conn{}
		rx := &c.rx
		rx.stage, rx.sink, rx.request = new(stage), sinkRequest, make([]byte, payload)
		rx.m.payload, rx.got, rx.left = uint64(payload), 100, uint64(payload-100)
		plan := c.planBody(nil)
		if len(plan) != 2 || len(plan[0]) != payload-100 || len(plan[1]) != behind {
			t.Errorf("behind a payload of %d bytes %d are read in %d pieces, want %d", payload, len(plan[len(plan)-1]), len(plan), behind)
		}
	}
}
