//go:build unix && (!linux || race)

package xfer

import "errors"

// defaultKills is how many processes TestKill kills unless told otherwise. They start
// slowly under the race detector.
const defaultKills = 60

// bigVictim is one side of a transfer that is tried on Linux only, and not under the
// race detector, whose memory would be counted.
func bigVictim([]string) error { return errors.New("not in this build") }
