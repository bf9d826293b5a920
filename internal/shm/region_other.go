//go:build !linux

package shm

import (
	"errors"
	"fmt"
	"runtime"
)

func unsupported() error { return fmt.Errorf("shm: %w on %s", errors.ErrUnsupported, runtime.GOOS) }

// Create is not supported on this system.
func Create(string, int) (*Region, error) { return nil, unsupported() }

// Open is not supported on this system.
func Open(string, int, int) (*Region, error) { return nil, unsupported() }

// Private is not supported on this system.
func Private(int) (*Region, error) { return nil, unsupported() }

// Close has nothing to do.
func (r *Region) Close() error { return nil }

// Unused is not supported on this system.
func Unused(string) (bool, error) { return false, unsupported() }
