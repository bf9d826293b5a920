// Package waitlist is a queue of goroutines that wait for a resource which an allocator hands out under its own lock.
//
// Waiters are served in the order in which they came: no waiter is served before an earlier one, even if the earlier one wants
// more. The allocator calls Serve when a part of the resource was given back, with its lock held. While Waiting returns true, it
// gives nothing to goroutines that do not wait:
//
//	mu.Lock()
//	if list.Waiting() || !room(n) {
//		mu.Unlock()
//		got, err := list.Wait(ctx, &mu, n, take) // take is called with mu held
//	}
package waitlist
