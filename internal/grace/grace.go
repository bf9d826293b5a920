// Package grace bounds how long the orderly end of a connection may take, because a program that was interrupted must end
// although its peer is frozen.
package grace

import (
	"context"
	"time"
)

// Interrupted is the time that an orderly end has after the context of its operation has ended. A message still reaches a peer on
// another continent in it.
const Interrupted = 300 * time.Millisecond

// Period returns the context for an orderly end: it lasts for limit, but only for [Interrupted] once ctx has ended, and it keeps
// the values of ctx. The caller must call the function, which frees its timers.
func Period(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	period, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	cut := context.AfterFunc(ctx, func() {
		last := time.NewTimer(Interrupted)
		defer last.Stop()
		select {
		case <-last.C:
			cancel()
		case <-period.Done():
		}
	})
	return period, func() {
		cut()
		cancel()
	}
}
