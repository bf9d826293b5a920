//go:build !linux

package main

import (
	"errors"
	"runtime"
	"time"

	"cinnabar/bench/internal/record"
)

var errLinuxOnly = errors.New("this program measures it on Linux only, and this is " + runtime.GOOS)

func wakePrice() ([]record.Wake, error) { return nil, errLinuxOnly }

func processorUse() use { return use{at: time.Now()} }

func processorTime() (time.Duration, error) { return 0, errLinuxOnly }
