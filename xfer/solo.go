package xfer

import (
	"context"
	"net/netip"
	"runtime"
)

// A side that has one processor gains nothing from several goroutines: each hand-over of a chunk costs a wake-up, and the goroutines evict each
// other's buffers from the processor's cache. One goroutine, that of the disk's worker, then waits for completions, reads or writes the file,
// and adds the chunks to the digest, as a plain copy does. The queue pair's buffers and TCP's let the two sides overlap. A transfer without a
// digest has the several goroutines all the same, because it was slower with one, at eight buffers of 512 KiB.
//
//	         jobs left                     no jobs left
//	  ┌─────────────────────┐      ┌──────────────────────────┐
//	  ▼                     │      ▼                          │
//	do a job ─▶ take the completions that are there ─▶ wait for completions
//
// A job may block for as long as the disk does. Therefore the goroutine that calls run keeps the clock, the context and the end of the
// connection. When one of them ends the transfer, endSolo makes the solo goroutine leave the completion queue to run. From then on the solo
// goroutine does jobs only, such as the commit of a file.

// isSolo reports whether a side of a connection between two addresses has one processor. Two sides on one host have half of its processors each.
func isSolo(local, remote netip.AddrPort) bool {
	n := runtime.GOMAXPROCS(0)
	if a, b := local.Addr().Unmap(), remote.Addr().Unmap(); a == b || a.IsLoopback() && b.IsLoopback() {
		n /= 2
	}
	return n <= 1
}

// both returns the function that does the jobs of the disk and of the digest.
func both(disk, digest func(action) event) func(action) event {
	return func(a action) event {
		if a.kind == actHash || a.kind == actSum {
			return digest(a)
		}
		return disk(a)
	}
}

// startSolo starts the solo goroutine.
func (s *session) startSolo(ctx context.Context) {
	waiting, leave := context.WithCancel(ctx)
	s.leave = leave
	s.res.cq.SetSpin(0) // the processor is the peer's while this side waits
	s.disk.wg.Go(func() {
		for s.turn(ctx, waiting) {
		}
		s.wakeRun()
		s.disk.run()
	})
}

// endSolo ends the solo goroutine's use of the completion queue. It returns at once; a caller that locks polls waits until that use is over.
func (s *session) endSolo() {
	if s.leave != nil {
		s.leave()
	}
}

// turn does the next job, if there is one, and then processes completions, for which it waits if there was no job. It returns false when
// the completion queue has no further use, or belongs to run.
func (s *session) turn(ctx, waiting context.Context) bool {
	wait := false
	select {
	case a, ok := <-s.disk.jobs:
		if !ok {
			return false
		}
		s.disk.job(a)
	default:
		wait = !s.connHasFailed() // no completion need come on a failed connection
	}
	s.polls.Lock()
	defer s.polls.Unlock()
	if waiting.Err() != nil {
		return false
	}
	var n int
	var err error
	if wait {
		n, err = s.res.cq.Wait(waiting, s.wcs[:])
		if n == 0 && waiting.Err() != nil {
			return false
		}
	} else {
		n, err = s.res.cq.Poll(s.wcs[:])
	}
	more, finished := s.processLocked(ctx, n, err)
	return !finished && err == nil && (more || !s.connHasFailed())
}

// connHasFailed reports whether a completion or a post has failed.
func (s *session) connHasFailed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connErr != nil
}

// hasFinished reports whether the machine has finished.
func (s *session) hasFinished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished
}
