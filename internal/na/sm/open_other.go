//go:build !linux

package sm

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"cinnabar/internal/na"
)

// Open refuses: shared memory with process_vm_readv and eventfd exists on Linux only.
func Open(context.Context, Config) (na.Endpoint, error) {
	return nil, &na.Error{Kind: na.Unsupported, Op: "open na+sm", Err: fmt.Errorf("%w on %s; use ofi+tcp", errors.ErrUnsupported, runtime.GOOS)}
}

// Available returns the cause why no endpoint can listen on this host.
func Available() error {
	return fmt.Errorf("%w on %s; use ofi+tcp", errors.ErrUnsupported, runtime.GOOS)
}

// Attach returns the cause why this process cannot access the memory of others.
func Attach() error { return Available() }
