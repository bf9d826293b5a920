//go:build race

package cinnabar

// raceDetector tells that the race detector is on, which keeps memory of its own for all that a program touches.
const raceDetector = true
