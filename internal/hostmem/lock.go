package hostmem

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// errNotLocked is the refusal of Unlock for a slice that Lock did not lock.
var errNotLocked = errors.New("hostmem: slice is not locked")

// locks holds the slices that are locked. The system does not count locks: one munlock undoes any number of mlocks of a page, and two
// registrations may share one. Therefore this table counts, and its slices keep Go memory alive, because the collector could otherwise
// reuse locked pages.
var locks struct {
	mu   sync.Mutex
	live [][]byte // +checklocks:mu
}

// span is the addresses from start to before end, both multiples of the page size.
type span struct{ start, end uint64 }

// pagesOf returns the pages that b touches.
func pagesOf(b []byte) span {
	page := uint64(os.Getpagesize())
	start := Addr(b)
	end := start + uint64(len(b))
	return span{start / page * page, (end + page - 1) / page * page}
}

// Lock makes the pages that hold b resident and keeps them so until [Unlock] of the same slice. Locks nest: a page stays locked until
// the last slice on it is unlocked. The slice is kept alive while locked; a mapping must be unlocked before [Unmap]. An empty slice
// needs no lock.
//
// When the system refuses, the error contains the requested size and the limit, and wraps the system's error: syscall.ENOMEM if the
// limit of the process would be exceeded, syscall.EPERM if it may lock nothing at all. On systems other than Linux the error wraps
// [errors.ErrUnsupported].
func Lock(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	locks.mu.Lock()
	defer locks.mu.Unlock()
	if err := lockPages(pagesOf(b)); err != nil {
		// mlock(2) leaves open whether some pages are locked now. Undoing
		// is best effort, because the pages may not exist. The caller gets err.
		_ = unlockUncovered(b)
		return lockError(len(b), err)
	}
	locks.live = append(locks.live, b)
	return nil
}

// Unlock undoes one [Lock] of b, which must be the same slice. Pages on which
// another locked slice lies stay locked.
func Unlock(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	locks.mu.Lock()
	defer locks.mu.Unlock()
	i := slices.IndexFunc(locks.live, func(l []byte) bool {
		return &l[0] == &b[0] && len(l) == len(b)
	})
	if i < 0 {
		return errNotLocked
	}
	locks.live = slices.Delete(locks.live, i, i+1)
	if err := unlockUncovered(b); err != nil {
		return fmt.Errorf("hostmem: unlock %d bytes: %w", len(b), err)
	}
	return nil
}

// unlockUncovered unlocks those pages of b on which no locked slice lies.
//
// +checklocks:locks.mu
func unlockUncovered(b []byte) error {
	for _, s := range uncovered(pagesOf(b), locks.live) {
		if err := unlockPages(s); err != nil {
			return err
		}
	}
	return nil
}

// uncovered returns the parts of s on which none of the slices lies.
func uncovered(s span, live [][]byte) []span {
	free := []span{s}
	for _, b := range live {
		free = subtract(free, pagesOf(b))
	}
	return free
}

// subtract returns the parts of the spans that lie outside cut.
func subtract(spans []span, cut span) []span {
	var rest []span
	for _, s := range spans {
		if head := (span{s.start, min(s.end, cut.start)}); head.start < head.end {
			rest = append(rest, head)
		}
		if tail := (span{max(s.start, cut.end), s.end}); tail.start < tail.end {
			rest = append(rest, tail)
		}
	}
	return rest
}

// lockError returns the error of Lock for the system's refusal err, with the limit and the remedy.
func lockError(size int, err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("hostmem: lock %d bytes: %w on this system", size, err)
	}
	cur, _, ok := LockLimit()
	if !ok || cur == Unlimited {
		return fmt.Errorf("hostmem: lock %d bytes: %w", size, err)
	}
	return fmt.Errorf("hostmem: lock %d bytes: %w: this process may lock %d bytes in all; "+
		"raise the limit (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK", size, err, cur)
}

// Unlimited is the result of [LockLimit] without a limit.
const Unlimited = ^uint64(0)
