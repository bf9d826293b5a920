//go:build race

package hg

// raceEnabled: under the race detector pools drop things at random.
const raceEnabled = true
