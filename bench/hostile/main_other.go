//go:build !linux

package main

import (
	"fmt"
	"os"
	"runtime"
)

// run reports why the command does not run here.
func run([]string) int {
	fmt.Fprintf(os.Stderr, "hostile: runs on Linux only, because it pins processes to processors and connects from 127.0.0.2 to 127.0.0.11; this is %s\n", runtime.GOOS)
	return 1
}
