//go:build !race

package main

// raceEnabled tells of the race detector, under which tests that move much data take ten times as long and find nothing
// that they do not find with less.
const raceEnabled = false
