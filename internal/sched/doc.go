// Package sched decides the order in which requests get handlers. It has pools of workers, and queues in which hosts, and the
// peers of a host, take turns.
//
// # Nouns
//
//   - A [Pool] bounds the number of handlers that run at once and the number of requests that wait. A [Job] is the state of one
//     request in a Pool, and a [Work] is the request itself. A [Ref] refers to a Job as long as its handler runs.
//   - A [Kind] is the order in which the requests of a pool get their workers.
//   - A [LatencyEstimator] learns whether the handlers of one RPC are quick.
//   - A [Clock] returns the time at which a job came. It is not exact, because a reading of the system's clock costs more.
//   - A [JobInfo] is the state of a job at a moment. [Pool.First] returns those of the first jobs, [Pool.Watch] reports jobs that take long.
//
// # Usage
//
//	pool := sched.NewPool(sched.PoolConfig{Name: "io", Workers: 4, Alive: 4096, Queue: 1024})
//	req.job.Init(req, pool, &entry.pace, &req.ctx.job) // req implements sched.Work
//	return req.job.Admit()                             // a task for the transport, or nil
//
// # Goroutines of handlers
//
// A handler may block, so it has a goroutine of its own, unless its RPC has proved quick: then the goroutine that read
// the request from the network runs it, because starting another goroutine costs more than a short handler does. A handler that does nothing
// but transfers with its caller counts as quick while at most one other handler is under way, although it waits for the transfers, because
// the waiting handler itself reads the connection. See [LatencyEstimator].
//
// # Fairness
//
// Requests that wait are queued by host and peer. Hosts take turns, and the peers of a host do in the host's turns, so that
// a peer that sends a thousand requests delays another's single one by one handler, and a host with a thousand connections
// delays another host's request no more than that.
//
// A host has its share of the handlers that there may be, and of the queue, by the rule of package hostquota. A request of
// a host that has its share of the handlers waits, and those of other hosts pass it. A request for which the queue has no
// room takes the place of the newest one of the host that has most, or, within a host, of the peer that has most.
//
// In pools of kind [Priority] that holds among requests of one priority. A higher one comes first, but each eighth turn is
// that of the priority that has waited longest. Pools of kind [EarliestFirst] serve hosts that may have another handler in
// the order of arrival, and do not distinguish peers.
//
// # Concurrency
//
// Everything is safe for concurrent use, except that a Job belongs to its Pool from Admit to the call of Ended or
// Overloaded. Functions of a [Work] are called without a lock held, but for Peer, Host and About.
package sched
