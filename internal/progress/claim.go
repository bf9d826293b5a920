package progress

import "sync/atomic"

// Claim states which goroutines read one connection: its drivers, or its background goroutine. A driver is a goroutine that waits for a message of the
// connection and reads the connection itself. While the claim is taken, the background goroutine does not read, because a message would
// otherwise wake that goroutine besides the driver. The claim stays taken after the driver has got its message, because the driver usually
// makes its next call soon. A [Watcher] ends the claim if no driver has come for some intervals of the watcher. The zero Claim is not taken. All methods
// but Quiet are safe for concurrent use.
type Claim struct {
	on     atomic.Bool
	drives atomic.Uint64 // number of calls of Drive
	seen   uint64        // value of drives at the last call of Quiet
	quiet  int           // calls of Quiet in a row without a driver
}

// Drive records that a driver begins to wait.
func (c *Claim) Drive() { c.drives.Add(1) }

// Take takes the claim, and reports whether it was free before. If so, the caller calls [Watcher.Add].
func (c *Claim) Take() (first bool) { return !c.on.Swap(true) }

// Taken reports whether the claim is taken.
func (c *Claim) Taken() bool { return c.on.Load() }

// End frees the claim, and reports whether it was taken before. If so, the caller wakes the background goroutine.
func (c *Claim) End() (was bool) { return c.on.Load() && c.on.Swap(false) }

// unusedLooks is the number of looks in a row without a driver after which a claim ends. With a value of 1, a caller that a busy machine delays by a
// millisecond between two calls would lose the claim. The background goroutine would then poll, and compete with the caller for processors.
const unusedLooks = 4

// Quiet counts its calls in a row without a driver, and reports whether they are enough to end the claim: unusedLooks, or one if waits is true. The caller sets
// waits if something waits for the peer, because only the background goroutine receives a message for which no driver comes. A call has a driver if Drive
// was called since the last call of Quiet, or if driven, which says that a driver waits at present, is true. Only [Watched.Look] calls Quiet.
func (c *Claim) Quiet(waits, driven bool) bool {
	if n := c.drives.Load(); n != c.seen || driven {
		c.seen, c.quiet = n, 0
		return false
	}
	c.quiet++
	return waits || c.quiet >= unusedLooks
}
