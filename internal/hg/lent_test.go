package hg

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
)

// lendingScript is a scripted endpoint that lends memory.
type lendingScript struct {
	*scripted
	lent *scriptLent
}

// scriptLent is lent memory that a peer reads until release is closed.
type scriptLent struct {
	*scriptMemory
	pieces  [][]byte
	keeps   int           // the number of calls of Keep
	keeping chan struct{} // Keep returns when it is closed; nil: at once
	read    bool          // the peer is reading
	release chan struct{}
}

// Lend implements [na.Lender].
func (e *lendingScript) Lend(pieces ...[]byte) (na.LentMemory, error) {
	e.lent.scriptMemory, e.lent.pieces = &scriptMemory{e.scripted, 1}, slices.Clone(pieces)
	return e.lent, nil
}

func (m *scriptLent) Idle() bool { return !m.read }

func (m *scriptLent) Keep() []byte {
	m.keeps++
	if m.keeping != nil {
		<-m.keeping
	}
	return slices.Concat(m.pieces...)
}

func (m *scriptLent) Close() {
	if m.read {
		<-m.release
	}
}

// finish completes an operation in flight.
func (e *lendingScript) finish(name string, response []byte, err error) {
	e.mu.Lock()
	op, buf, frags := e.flying[name], e.buffers[name], e.frags[name]
	delete(e.flying, name)
	e.mu.Unlock()
	n := copy(buf, response)
	for _, f := range frags {
		n += len(f.Local)
	}
	op.Finish(int64(n), err)
}

// startLent starts a call with lent arguments.
func startLent(t *testing.T, lent *scriptLent) (*Class, *lendingScript, *Call) {
	t.Helper()
	ep := &lendingScript{newScripted(), lent}
	c := New(Config{Checksums: wire.NoChecksums})
	c.Attach(ep)
	c.Serve()
	if !c.Lends(&ep.peer) {
		t.Fatal("the class does not lend")
	}
	k := c.NewCall()
	k.StartLent(&ep.peer, 7, CallOptions{}, append(k.Around(), 1), make([]byte, LargePayload), nil)
	return c, ep, k
}

// TestAnsweredLentCall cancels a call when its answer is there and an operation is still under way. If the peer reads the arguments all the same, Wait
// returns while it does, so the peer must read a copy.
func TestAnsweredLentCall(t *testing.T) {
	for name, read := range map[string]bool{"the peer has read": false, "the peer still reads": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lent := &scriptLent{read: read, release: make(chan struct{})}
				c, ep, k := startLent(t, lent)
				ep.finish("send", nil, nil)
				response := wire.AppendLent(make([]byte, wire.FormShort.Size()), 255, (&scriptMemory{n: 255}).AppendHandle, nil)
				wire.PutResponse(response, wire.Response{Flags: wire.FlagMoreData})
				ep.finish("receive", response, nil)
				ep.finish("get", nil, nil) // the acknowledgement is under way now
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				waited := make(chan error, 1)
				go func() { waited <- k.Wait(ctx) }()
				synctest.Wait()
				if kept := lent.keeps > 0; kept != read { // before the network lets go of the call, because Wait does not wait for that
					t.Errorf("the peer reads: %v, and a copy was made: %v", read, kept)
				}
				ep.finish("ack", nil, nil)
				if err := <-waited; err != nil {
					t.Errorf("Wait returns %v", err)
				}
				close(lent.release)
				synctest.Wait()
				k.Free()
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestWaitForCopy cancels a call on another goroutine, which takes long for the copy. Wait must not return before the copy is made.
func TestWaitForCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lent := &scriptLent{keeping: make(chan struct{})}
		c, ep, k := startLent(t, lent)
		ep.finish("send", nil, nil)
		go k.Cancel()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		waited := make(chan error, 1)
		go func() { waited <- k.Wait(ctx) }()
		elapse(10 * settleTime)
		select {
		case err := <-waited:
			t.Fatalf("Wait returns %v before the copy is made", err)
		default:
		}
		close(lent.keeping)
		synctest.Wait()
		ep.finish("receive", nil, &na.Error{Kind: na.Canceled, Op: "receive"})
		if code := codeFrom(t, <-waited); code != codes.Canceled {
			t.Errorf("code %v", code)
		}
		k.Free()
		close(ep.peer.gone)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestFailedLentCall answers a call with an error while the peer reads the arguments. Wait does not wait for the peer.
func TestFailedLentCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lent := &scriptLent{read: true, release: make(chan struct{})}
		c, ep, k := startLent(t, lent)
		ep.finish("send", nil, nil)
		response := make([]byte, wire.FormShort.Size())
		wire.PutResponse(response, wire.Response{Code: codes.Again})
		ep.finish("receive", response, nil)
		if code := codeFrom(t, k.Wait(t.Context())); code != codes.Again || lent.keeps != 1 {
			t.Errorf("code %v, %d copies", code, lent.keeps)
		}
		k.Free()
		close(lent.release)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
