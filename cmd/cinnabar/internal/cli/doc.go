// Package cli has the parts that the commands of cinnabar share. NewRoot puts commands together into a tree, Main carries out the command line of
// the process with it, and Run any other command line.
//
// A command gets its Streams when it is made and its context from cobra. It returns an error, which Run prints once and turns into an
// exit code: ExitUsage for an error of Usagef, 128 and the signal's number after a SignalError, ExitFailure for any other. Options
// that several commands have, such as --json and --device, are registered by functions of this package, so that their names, letters and
// meanings are the same everywhere.
package cli
