//go:build race

package invariants

// Race reports whether the race detector is built in. Tests that repeat a step often or move much data do less of it then, because
// each access takes about ten times as long and the detector allocates memory for each byte touched.
const Race = true
