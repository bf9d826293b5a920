//go:build !race

package hg

const raceEnabled = false
