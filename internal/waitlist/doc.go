// Package waitlist is a queue of goroutines that wait for a resource which an allocator hands out under its own lock.
//
// Those who wait are served in the order in which they came; nobody is served before one who came earlier, even if that
// one wants more. The allocator calls Serve when something was given back, with its lock held, and gives nothing to those
// who do not wait while Waiting says so:
//
//	mu.Lock()
//	if list.Waiting() || !room(n) {
//		mu.Unlock()
//		got, err := list.Wait(ctx, &mu, n, take) // take is called with mu held
//	}
package waitlist
