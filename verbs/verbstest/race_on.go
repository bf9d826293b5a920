//go:build race

package verbstest

// raceEnabled reports that the race detector is on: everything takes ten times
// as long and allocates.
const raceEnabled = true
