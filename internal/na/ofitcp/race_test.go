//go:build race

package ofitcp

const raceEnabled = true
