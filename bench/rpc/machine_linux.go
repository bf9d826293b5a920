package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/bench/internal/record"
)

// processorTime returns the processor time that this process has used.
func processorTime() (time.Duration, error) {
	var r unix.Rusage
	err := os.NewSyscallError("getrusage", unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

// processorUse reads the processor time of the machine and of this program.
func processorUse() use {
	u := use{at: time.Now()}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u
	}
	if u.total, u.stolen, err = machineTime(string(text)); err != nil {
		return u
	}
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if unix.Getrusage(who, &r) != nil {
			return u
		}
		u.ours += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	u.known = true
	return u
}

// tick is the unit of /proc/stat: USER_HZ, which is 100 for programs on every architecture that Go has.
const tick = time.Second / 100

// machineTime returns the time that all processors together have computed, and that was withheld from them, of the text of /proc/stat.
func machineTime(stat string) (total, stolen time.Duration, err error) {
	first, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(first) // cpu user nice system idle iowait irq softirq steal ...
	const steal = 8
	if len(fields) <= steal || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("/proc/stat begins with %q", first)
	}
	for i, text := range fields[1 : steal+1] {
		n, err := strconv.ParseInt(text, 10, 64)
		switch i {
		case 0, 1, 2, 5, 6:
			total += time.Duration(n) * tick
		case 7:
			stolen = time.Duration(n) * tick
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return total, stolen, nil
}

// wakeRuns is the number of wake-ups of which the percentiles are.
const wakeRuns = 201

// wakePrice measures how long after a wake-up a thread runs that was parked for a time on a processor of its own, which was idle meanwhile. The
// waker keeps the other processor busy until it wakes the thread through an eventfd.
func wakePrice() ([]record.Wake, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	var cpus []int
	for i := range 64 * len(set) { // each word has 64 bits at most
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if len(cpus) < 2 {
		return nil, errors.New("it takes two processors")
	}
	var list []record.Wake
	for _, idle := range []time.Duration{20 * time.Microsecond, 200 * time.Microsecond, 2 * time.Millisecond} {
		w, err := wakeAfter(idle, cpus[0], cpus[1])
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	return list, nil
}

// wakeAfter measures wake-ups by a thread of processor one of a thread of processor other, which has been parked for the time idle.
func wakeAfter(idle time.Duration, one, other int) (record.Wake, error) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return record.Wake{}, os.NewSyscallError("eventfd", err)
	}
	defer func() { _ = unix.Close(bell) }()
	begin := time.Now()
	var parked, woken atomic.Int64 // moments since begin; 0: not yet
	var failed atomic.Bool         // one of the threads has ended early
	await := func(moment *atomic.Int64) (at time.Duration, ok bool) {
		for {
			if at := moment.Swap(0); at != 0 {
				return time.Duration(at), true
			}
			if failed.Load() {
				return 0, false
			}
		}
	}
	ended := make(chan error, 2)
	go onProcessor(other, ended, &failed, func() error { // the sleeper
		var b [8]byte
		for range wakeRuns {
			parked.Store(int64(time.Since(begin)))
			if _, err := unix.Read(bell, b[:]); err != nil {
				return os.NewSyscallError("read", err)
			}
			woken.Store(int64(time.Since(begin)))
			for woken.Load() != 0 && !failed.Load() { // the waker has not seen it
			}
		}
		return nil
	})
	var prices []float64
	go onProcessor(one, ended, &failed, func() error { // the waker, which never leaves its processor
		ring := binary.NativeEndian.AppendUint64(nil, 1)
		for range wakeRuns {
			since, ok := await(&parked)
			if !ok {
				return nil
			}
			rung := time.Since(begin)
			for rung < since+idle {
				rung = time.Since(begin)
			}
			if _, err := unix.Write(bell, ring); err != nil {
				return os.NewSyscallError("write", err)
			}
			at, ok := await(&woken)
			if !ok {
				return nil
			}
			prices = append(prices, float64(at-rung)/float64(time.Microsecond))
		}
		return nil
	})
	if err := errors.Join(<-ended, <-ended); err != nil {
		return record.Wake{}, err
	}
	slices.Sort(prices)
	return record.Wake{Idle: float64(idle) / float64(time.Microsecond), P50: prices[len(prices)/2], P90: prices[len(prices)*9/10]}, nil
}

// onProcessor runs f on a thread of its own that stays on one processor, and sends the error of f, before which it sets failed. The thread ends with f,
// because it is never unlocked: no other goroutine gets it.
func onProcessor(cpu int, ended chan<- error, failed *atomic.Bool, f func() error) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	err := os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &set))
	if err == nil {
		err = f()
	} else {
		err = fmt.Errorf("processor %d: %w", cpu, err)
	}
	if err != nil {
		failed.Store(true)
	}
	ended <- err
}
