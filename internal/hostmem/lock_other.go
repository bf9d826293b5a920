//go:build !linux

package hostmem

import "errors"

// lockPages refuses: only Linux's locking is supported.
func lockPages(span) error { return errors.ErrUnsupported }

// unlockPages is never reached, since nothing can be locked.
func unlockPages(span) error { return errors.ErrUnsupported }

// LockLimit reports ok == false: only Linux's locking is supported.
func LockLimit() (cur, max uint64, ok bool) { return 0, 0, false }
