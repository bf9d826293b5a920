// Package rundown counts the users of something that ends, refuses new ones from its end on, and lets the end wait for those
// that are left: memory that is unregistered, an engine that shuts down, goroutines that run tasks of the layer above.
//
//	var g rundown.Guard
//
//	if !g.Acquire() { // every user
//		return errClosed
//	}
//	defer g.Release()
//
//	g.Close() // the owner: Acquire fails from now on
//	err := g.Wait(ctx)
//
// A [Guard] is a count, a pointer, and a mutex that only waiters and the Release that wakes them lock. Acquire and Release cost an
// atomic addition each; nothing is allocated unless a goroutine waits.
package rundown
