package ofiverbs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/verbstest/memdev"
)

// faulty is an endpoint on a device that fails as a plan says, and a peer that the test drives, in simulated time.
type faulty struct {
	t      *testing.T
	in     *fault.Injector
	book   *hostquota.Book
	e      *Endpoint
	peer   *rawPeer
	shared *remote // memory of the peer that others may read and write
	to     na.Addr
	conn   *rawConn
}

// sharedSize is the number of bytes of the peer's memory, which is more than all places for reads and writes of a connection move.
const sharedSize = (mostOneSided + 2) * mostChunk

// withFaults runs test with an endpoint on a device with a fault plan of these rules. Afterwards the endpoint and the device can be closed.
func withFaults(t *testing.T, cfg Config, rules []fault.Rule, test func(t *testing.T, f *faulty)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem := memdev.Open(memdev.Config{})
		in, err := fault.New(fault.Plan{Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		f := &faulty{t: t, in: in, book: hostquota.NewBook(hostquota.Limits{})}
		cfg.Device, cfg.Quota, cfg.Progress = in.Wrap(verbs.NewDevice(mem)), f.book, progress.NewFixed(0)
		raw := verbs.NewDevice(mem)
		t.Cleanup(func() {
			for _, d := range []*verbs.Device{cfg.Device, raw} {
				if err := d.Close(); err != nil {
					t.Errorf("close the device: %v", err)
				}
			}
		})
		f.peer = newRawPeerOn(t, raw)
		mr, err := f.peer.pd.RegMR(make([]byte, sharedSize), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := mr.Close(); err != nil {
				t.Error(err)
			}
		})
		f.shared = &remote{at: mr.Remote(), size: sharedSize, access: na.ReadWrite}
		f.e = openEndpoint(t, cfg)
		f.to = f.peer.addr(t, f.e)
		test(t, f)
		closeEndpoint(t, f.e)
		for i := range (hostquota.Limits{}) {
			if r := hostquota.Resource(i); f.book.Used(r) != 0 {
				t.Errorf("%d of %v are counted in the end", f.book.Used(r), r)
			}
		}
	})
}

// request sends a request with tag and waits for its response. It returns both operations.
func (f *faulty) request(tag uint32) (sent, answer *call) {
	sent, answer = newCall(), newCall()
	f.e.RecvExpected(&answer.op, f.to, tag, make([]byte, 10))
	f.e.SendRequest(&sent.op, f.to, tag, request(f.e, nil))
	return sent, answer
}

// accept accepts a connection of the endpoint, and takes as many requests as credits permit.
func (f *faulty) accept(requests int) {
	f.t.Helper()
	f.conn = f.peer.accept(f.t)
	f.conn.credit(f.t, requests+1) // the last credit is not for requests
	for n := 0; n < requests; {
		if f.conn.next(f.t).kind == kindRequest {
			n++
		}
	}
}

// move starts a read (or a write) of n bytes of the peer's memory.
func (f *faulty) move(put bool, n int) *call {
	c := newCall()
	frags := []na.Fragment{{Remote: f.shared, Local: make([]byte, n)}}
	if put {
		f.e.Put(&c.op, f.to, frags)
	} else {
		f.e.Get(&c.op, f.to, frags)
	}
	return c
}

// failed checks that the operations end with an error that says want, or that matches it.
func (f *faulty) failed(ops map[string]*call, kind na.Kind, match error, want ...string) {
	f.t.Helper()
	for name, c := range ops {
		c.want(f.t, kind)
		err := c.op.Err
		if match != nil && !errors.Is(err, match) {
			f.t.Errorf("%s: the error is %v, want %v", name, err, match)
		}
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				f.t.Errorf("%s: the error lacks %q: %v", name, text, err)
			}
		}
	}
}

// pending checks that the operations are not over.
func (f *faulty) pending(ops map[string]*call) {
	f.t.Helper()
	synctest.Wait()
	for name, c := range ops {
		if c.ev.IsSet() {
			f.t.Errorf("%s is over: %v", name, c.op.Err)
		}
	}
}

// first is a rule for the first request of the first queue pair with an operation.
func first(op verbs.Opcode, do fault.Action) fault.Rule {
	return fault.Rule{Match: fault.Match{At: fault.AtSend, Queue: 1, Ops: []verbs.Opcode{op}, Nth: 1}, Do: do}
}

// lossTime is the longest time from the event that ends a connection to the failure of the operations on it.
const lossTime = 100 * time.Millisecond

// TestQueueFails checks that a completion with an error, an overrun of the completion queue, and the end of a queue pair complete each operation
// that is under way on the connection with an error that names the cause, within lossTime. A request that was not sent leaves over the next connection.
func TestQueueFails(t *testing.T) {
	const ended = "ended the connection"
	for name, tc := range map[string]struct {
		rule  fault.Rule
		put   bool // the first transfer
		start func(f *faulty)
		match error
		want  string
	}{
		"status of a read":       {rule: first(verbs.OpRead, fault.Status(verbs.StatusRetryExcErr)), match: verbs.StatusRetryExcErr},
		"status of a write":      {rule: first(verbs.OpWrite, fault.Status(verbs.StatusGeneralErr)), put: true, match: verbs.StatusGeneralErr},
		"completion queue":       {rule: first(verbs.OpRead, fault.Overrun()), match: verbs.ErrCQOverrun},
		"queue pair":             {rule: first(verbs.OpRead, fault.Drop()), start: func(f *faulty) { _ = f.in.Disconnect(1) }, want: ended},
		"queue pair of the peer": {rule: first(verbs.OpRead, fault.Drop()), start: func(f *faulty) { f.conn.close(f.t) }, want: ended},
		"disconnect":             {rule: first(verbs.OpRead, fault.Disconnect()), want: ended},
	} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, Config{}, []fault.Rule{tc.rule}, func(t *testing.T, f *faulty) {
				sent, answer := f.request(1)
				f.accept(1)
				sent.want(t, 0)
				c := f.e.connections()[0]
				c.cork() // so that all is queued before the first failure
				unsent, second := f.request(2)
				ops := map[string]*call{"response": answer, "first transfer": f.move(tc.put, 3<<20), "second transfer": f.move(!tc.put, 3<<20)}
				begin := time.Now()
				c.uncork()
				if tc.start != nil {
					f.pending(ops)
					tc.start(f)
				}
				f.failed(ops, na.Unreachable, tc.match, tc.want)
				if took := time.Since(begin); took > lossTime {
					t.Errorf("the operations fail after %v", took)
				}
				f.pending(map[string]*call{"request": unsent, "its response": second})
				f.accept(1)
				unsent.want(t, 0)
				f.e.Cancel(&second.op)
				second.want(t, na.Canceled)
				f.move(false, 3<<20).want(t, 0)
			})
		})
	}
}

// TestDeviceGone checks that all operations fail with the cause when the device is removed, those that come later too, and that the endpoint can be
// closed.
func TestDeviceGone(t *testing.T) {
	gone := fault.Fail(verbs.ErrDeviceRemoved)
	rules := []fault.Rule{
		{Match: fault.Match{At: fault.AtSend, Ops: []verbs.Opcode{verbs.OpRead}}, Do: gone},
		{Match: fault.Match{At: fault.AtCreateCQ, Skip: 1}, Do: gone},
		{Match: fault.Match{At: fault.AtRequest}, Do: gone},
	}
	lines := new(bytes.Buffer)
	withFaults(t, Config{Logger: slog.New(slog.NewTextHandler(lines, nil)), DialRetry: time.Hour}, rules, func(t *testing.T, f *faulty) {
		sent, answer := f.request(1)
		f.accept(1)
		sent.want(t, 0)
		unsent, second := f.request(2)
		f.failed(map[string]*call{
			"get": f.move(false, 100), "response": answer, "request that was not sent": unsent, "its response": second,
		}, na.Unreachable, verbs.ErrDeviceRemoved)
		later, third := f.request(3)
		f.failed(map[string]*call{"later request": later, "its response": third, "later put": f.move(true, 100)}, na.Unreachable, verbs.ErrDeviceRemoved)
		_, err := f.peer.dial(t, f.e, appendRequest(nil, f.peer.cmRequest()))
		if _, rejected := errors.AsType[*verbs.RejectedError](err); !rejected {
			t.Errorf("a peer that connects gets %v", err)
		}
		synctest.Wait()
		if got := lines.String(); !strings.Contains(got, "the device was removed") {
			t.Errorf("the log does not say that the endpoint accepts no further connections:\n%s", got)
		}
	})
}

// TestKeepAliveBeforeRetries opens an endpoint on a device that does not report the loss of the peer's host for as long as the test lasts, because it sends again
// and again. The operations fail within KeepAlive.
func TestKeepAliveBeforeRetries(t *testing.T) {
	rules := []fault.Rule{{Match: fault.Match{At: fault.AtSend, Queue: 1, Skip: 2}, Do: fault.Drop()}} // not the credits and the first request
	withFaults(t, Config{KeepAlive: 4 * time.Second}, rules, func(t *testing.T, f *faulty) {
		sent, answer := f.request(1)
		f.accept(1)
		sent.want(t, 0)
		begin := time.Now()
		f.failed(map[string]*call{"response": answer, "get": f.move(false, 100), "put": f.move(true, 100)}, na.Unreachable, nil, "KeepAlive")
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("the loss was found after %v", took)
		}
	})
}

// TestKeepAliveWithWaitingMessages simulates the loss of the peer's host while a request waits for credits and nothing is under way in the device. The
// request fails within KeepAlive, and does not wait for another connection.
func TestKeepAliveWithWaitingMessages(t *testing.T) {
	rules := []fault.Rule{{Match: fault.Match{At: fault.AtSend, Queue: 1, Skip: 1}, Do: fault.Drop()}} // not the first credits
	withFaults(t, Config{KeepAlive: 4 * time.Second, SendTimeout: -1}, rules, func(t *testing.T, f *faulty) {
		sent, answer := f.request(1)
		f.accept(0)
		begin := time.Now()
		f.failed(map[string]*call{"request": sent, "response": answer}, na.Unreachable, nil, "KeepAlive")
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("the loss was found after %v", took)
		}
	})
}

// TestCancelHeld cancels a read of which the device holds the memory. The read completes when the connection has ended, cancelTime later, and
// the others on the connection fail with the cause: a call with its request sent learns that the request may have been executed. A request that
// was not sent leaves over the next connection.
func TestCancelHeld(t *testing.T) {
	for name, size := range map[string]int{"all pieces posted": 3 << 20, "some pieces posted": sharedSize} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, Config{}, []fault.Rule{first(verbs.OpRead, fault.Drop())}, func(t *testing.T, f *faulty) {
				sent, answer := f.request(1)
				f.accept(1)
				sent.want(t, 0)
				held := f.move(false, size)
				f.pending(map[string]*call{"the read": held}) // waits until the device has its pieces
				unsent, second := f.request(2)
				others := map[string]*call{"get": f.move(false, 100), "put": f.move(true, 100)}
				begin := time.Now()
				f.e.Cancel(&held.op)
				f.e.Cancel(&held.op) // again
				f.pending(map[string]*call{"the read": held, "response": answer, "request": unsent})
				f.pending(others)
				held.want(t, na.Canceled)
				if took := time.Since(begin); took != cancelTime {
					t.Errorf("it completed after %v", took)
				}
				f.e.Cancel(&held.op) // of an operation that is over
				f.failed(others, na.Unreachable, errHeld)
				f.failed(map[string]*call{"response": answer}, na.Unreachable, errHeld, "may have been executed")
				f.accept(1)
				unsent.want(t, 0)
				f.move(false, sharedSize).want(t, 0)
				f.e.Cancel(&second.op)
				second.want(t, na.Canceled)
			})
		})
	}
}

// TestCancelUnposted cancels transfers of which the device has no piece: one that waits for a connection, and one that waits behind others. They
// complete at once, and the connection stays.
func TestCancelUnposted(t *testing.T) {
	withFaults(t, Config{}, []fault.Rule{first(verbs.OpRead, fault.Drop())}, func(t *testing.T, f *faulty) {
		waiting := f.move(false, 100)
		f.e.Cancel(&waiting.op)
		if waiting.want(t, na.Canceled); len(f.e.connections()) != 0 {
			t.Error("there is a connection already")
		}
		sent, answer := f.request(1)
		f.accept(1)
		sent.want(t, 0)
		first := f.move(false, mostOneSided<<20) // takes all places
		behind := []*call{f.move(true, 100), f.move(false, 3<<20)}
		for _, c := range behind {
			f.e.Cancel(&c.op)
			c.want(t, na.Canceled)
		}
		time.Sleep(2 * cancelTime) //nolint:forbidigo // simulated time
		f.pending(map[string]*call{"transfer": first, "response": answer})
		f.conn.close(t)
		f.failed(map[string]*call{"transfer": first, "response": answer}, na.Unreachable, nil, "ended the connection")
	})
}

// TestCancelDuringEnd cancels a transfer that the device holds at the moment at which its connection ends by another cause.
func TestCancelDuringEnd(t *testing.T) {
	withFaults(t, Config{}, []fault.Rule{first(verbs.OpRead, fault.Drop())}, func(t *testing.T, f *faulty) {
		sent, answer := f.request(1)
		f.accept(1)
		sent.want(t, 0)
		held := f.move(false, 100)
		synctest.Wait()
		c := f.e.connections()[0]
		c.polling.Lock() // keeps the goroutine of the connection from releasing its objects
		c.fail(na.Unreachable, errors.New("another cause"))
		f.failed(map[string]*call{"response": answer}, na.Unreachable, nil, "another cause")
		f.e.Cancel(&held.op)
		if held.ev.IsSet() { // synctest.Wait would wait for that goroutine
			t.Error("the read is over while the device holds its memory")
		}
		c.polling.Unlock()
		held.want(t, na.Canceled)
	})
}

// TestCloseWithHeldMemory closes the endpoint while the device holds the memory of a transfer and messages wait.
func TestCloseWithHeldMemory(t *testing.T) {
	withFaults(t, Config{}, []fault.Rule{first(verbs.OpRead, fault.Drop())}, func(t *testing.T, f *faulty) {
		sent, answer := f.request(1)
		f.accept(1)
		sent.want(t, 0)
		ops := map[string]*call{"read": f.move(false, 100), "response": answer}
		ops["request"], ops["its response"] = f.request(2)
		f.pending(ops)
		ctx, cancel := context.WithTimeout(t.Context(), 2*closeTime)
		defer cancel()
		if err := f.e.Close(ctx); err != nil {
			t.Error(err)
		}
		f.failed(ops, na.Closed, nil)
	})
}
