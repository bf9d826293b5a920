//go:build !race

package interop

// raceFactor is by how much less is done under the race detector, where nothing but the time depends on it.
const raceFactor = 1
