//go:build !race

package clitest

// RaceEnabled tells of the race detector, under which tests that move much data take ten times as long and find nothing
// that they do not find with less.
const RaceEnabled = false
