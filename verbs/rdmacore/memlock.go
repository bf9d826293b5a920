//go:build linux

package rdmacore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
)

// registerError explains a refusal of ibv_reg_mr. The one that meets nearly
// everyone once is ENOMEM, the limit of locked memory.
func registerError(op string, size int, access verbs.Access, err error) error {
	switch {
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EAGAIN):
		return &verbs.Error{Op: op, Kind: verbs.ErrLockLimit, Err: err,
			Detail: fmt.Sprintf("%d bytes cannot be locked; %s, or register less at a time", size, lockAdvice())}
	case errors.Is(err, syscall.EFAULT) && access&verbs.LocalWrite != 0:
		return &verbs.Error{Op: op, Kind: verbs.ErrInvalid, Err: err,
			Detail: fmt.Sprintf("%d bytes, of which some are not mapped or only for reading; map them for writing, or ask for no right to write", size)}
	case errors.Is(err, syscall.EFAULT):
		return &verbs.Error{Op: op, Kind: verbs.ErrInvalid, Err: err, Detail: fmt.Sprintf("%d bytes, of which some are not mapped", size)}
	}
	return &verbs.Error{Op: op, Detail: fmt.Sprintf("%d bytes", size), Err: err}
}

// roomError explains why a queue could not be made. Drivers of cards lock the
// memory of queues too.
func roomError(op string, err error) error {
	if errors.Is(err, syscall.EMFILE) {
		return &verbs.Error{Op: op, Err: err, Detail: "it takes two descriptors; raise the limit with `ulimit -n`"}
	}
	e := &verbs.Error{Op: op, Err: err, Detail: "the device has no room for more, or less for one than its attributes say"}
	if cur, _, ok := hostmem.LockLimit(); errors.Is(err, syscall.ENOMEM) && ok && cur != hostmem.Unlimited {
		e.Detail += "; or its memory cannot be locked: " + lockAdvice()
	}
	return e
}

// lockAdvice is a text with the limit of locked memory, the part of it that is in
// use, and ways to raise it.
func lockAdvice() string {
	limit := "unknown"
	if cur, _, ok := hostmem.LockLimit(); ok && cur != hostmem.Unlimited {
		limit = fmt.Sprintf("%d bytes", cur)
	} else if ok {
		limit = "none, so the machine itself is short of memory"
	}
	if n, ok := pinned(); ok && n > 0 {
		limit += fmt.Sprintf(", of which %d are in use", n)
	}
	return fmt.Sprintf("the limit of this process is %s; raise it with `ulimit -l unlimited` in the shell, "+
		"`memlock` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, or --ulimit memlock=-1 for a container", limit)
}

// pinned returns the bytes that the kernel counts against the limit for
// registered memory (VmPin of proc(5)).
func pinned() (n uint64, ok bool) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	_, rest, found := bytes.Cut(b, []byte("\nVmPin:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	kib, unit := bytes.CutSuffix(bytes.TrimSpace(line), []byte(" kB"))
	n, err = strconv.ParseUint(string(kib), 10, 54)
	return n << 10, found && unit && err == nil
}
