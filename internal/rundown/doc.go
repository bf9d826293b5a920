// Package rundown counts the users of an object that its owner closes. After Close new users are refused, and the owner can wait
// until the others have released the object. Such objects are registered memory and engines, for example.
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
