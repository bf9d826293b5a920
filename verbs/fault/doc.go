// Package fault puts a layer around any device that makes things go wrong on
// purpose: lost, late, repeated and reordered work, broken connections, any
// completion status, any asynchronous event, refused calls.
//
// A [Plan] lists the faults: a seed and [Rule] values, each with a condition
// and an action.
//
//	in, err := fault.New(fault.Plan{Seed: 1, Rules: []fault.Rule{
//		// the third send of the first queue pair gets no answer
//		{Match: fault.Match{At: fault.AtSend, Queue: 1, Nth: 3}, Do: fault.Status(verbs.StatusRetryExcErr)},
//		// every tenth receive or so completes late
//		{Match: fault.Match{At: fault.AtRecv, Chance: 0.1}, Do: fault.Delay(20)},
//	}})
//	if err != nil {
//		return err
//	}
//	dev := in.Wrap(inner) // used and closed in the place of inner
//	...
//	err = in.WriteTrace(os.Stderr)
//
// [Wrap] is the short form for tests that need no trace. Events, breaks of
// connections and the passing of time can also be asked for at any moment
// ([Injector.Raise], [Injector.Disconnect], [Injector.Advance]).
//
// # Replay
//
// A decision depends on the seed, the rule, the queue and the number of the
// candidate at that queue, on nothing else: the same plan and the same posts to
// each queue inject the same faults, regardless of the scheduling between queues.
// Queues are known by the order in which they were created, from 1. Time is
// counted in polls of a completion queue; the layer reads no clock and never
// sleeps.
//
// # Guarantees
//
// A faulty device is still a device. Each accepted request that makes a
// completion makes exactly one, in the order of its queue, except after an
// overrun; only a dropped receive comes behind those that overtook it. A failed request takes its queue pair to ERR, the peer loses the
// connection, and all that is left is flushed. In place of a request that must
// not take effect, the layer posts a write of zero bytes, which carries the
// place in the queue through the device below.
//
// Verbs have reliable queues, so some faults of a network do not exist here: a
// lost packet is a delay, and a torn one is seen only as [Partial], the prefix of
// a write that was cut off when its connection broke. Connection events reach programs as results
// of calls, so an event of unknown type cannot be injected: [Fail] with any error
// is its equivalent.
//
// # Cost and concurrency
//
// Wrap of an empty plan returns the device itself. Otherwise one mutex guards
// the layer's books, each completion queue has a goroutine that passes events on
// until the queue is closed, and each connection has one that waits for its end.
// The data path allocates. All methods are safe for concurrent use.
package fault
