package progress

import "sync/atomic"

// Claim states whether drivers read one connection, or its background goroutine. A driver is a goroutine that waits for a message of the
// connection and reads the connection itself. While the claim is taken, the background goroutine does not read, because a message would
// otherwise wake that goroutine besides the driver. The claim stays taken after the driver has got its message, because the driver usually
// makes its next call soon. A [Watcher] ends the claim if no driver has come for [WatchInterval]. The zero Claim is not taken. All methods
// but Quiet are safe for concurrent use.
type Claim struct {
	on     atomic.Bool
	drives atomic.Uint64 // number of calls of Drive
	seen   uint64        // value of drives at the last call of Quiet
}

// Drive records that a driver begins to wait.
func (c *Claim) Drive() { c.drives.Add(1) }

// Take takes the claim, and reports whether it was free before. If so, the caller calls [Watcher.Add].
func (c *Claim) Take() (first bool) { return !c.on.Swap(true) }

// Taken reports whether the claim is taken.
func (c *Claim) Taken() bool { return c.on.Load() }

// End frees the claim, and reports whether it was taken before. If so, the caller wakes the background goroutine.
func (c *Claim) End() (was bool) { return c.on.Load() && c.on.Swap(false) }

// Quiet reports whether Drive has not been called since the last call of Quiet. Only [Watched.Look] calls it.
func (c *Claim) Quiet() bool {
	last := c.seen
	c.seen = c.drives.Load()
	return c.seen == last
}
