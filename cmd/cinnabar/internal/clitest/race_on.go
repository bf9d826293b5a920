//go:build race

package clitest

// RaceEnabled reports whether the race detector is built in. Tests that move much data move less with it, because they take ten times
// as long and find nothing more.
const RaceEnabled = true
