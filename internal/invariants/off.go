//go:build !invariants

package invariants

import "sync"

// Enabled reports whether invariant checks are compiled in.
const Enabled = false

// Mutex is [sync.Mutex].
type Mutex = sync.Mutex

// RWMutex is [sync.RWMutex].
type RWMutex = sync.RWMutex
