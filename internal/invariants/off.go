//go:build !invariants

package invariants

// Enabled reports whether invariant checks are compiled in.
const Enabled = false
