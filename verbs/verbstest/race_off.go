//go:build !race

package verbstest

// raceEnabled reports that the race detector is on.
const raceEnabled = false
