// Package grace bounds how long the orderly end of a connection may take, because a program that was interrupted must end
// even if its peer is stopped.
package grace

import (
	"context"
	"time"
)

// Interrupted is the time that an orderly end has after the context of its operation has ended. In this time a message reaches a
// peer on another continent.
const Interrupted = 300 * time.Millisecond

// Period returns the context for an orderly end. It ends after limit, or after [Interrupted] from the end of ctx on, whichever is earlier, and has
// the values of ctx. The caller must call the returned function, because it frees the timers.
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
