//go:build !linux

package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "crowd: runs on Linux only, because it connects from 127.0.0.2 and on and reads the resident set of a process; this is %s\n", runtime.GOOS)
	os.Exit(1)
}
