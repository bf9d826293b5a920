//go:build !linux

package main

import (
	"fmt"
	"os"
	"runtime"
)

// run reports why the command does not run here.
func run([]string) int {
	fmt.Fprintf(os.Stderr, "crowd: runs on Linux only, because it connects from 127.0.0.2 and on and reads the resident set of a process; this is %s\n", runtime.GOOS)
	return 1
}
