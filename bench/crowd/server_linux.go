package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar"
)

// serve serves the call until in ends.
func serve(r role, in io.Reader, out io.Writer) (err error) {
	if r.Sample {
		runtime.MemProfileRate = 1
	}
	// The hosts of the clients have shares of the limit. With twice the number of connections the shares of three and more hosts suffice.
	cfg := &cinnabar.Config{MaxConnections: max(64, 2*r.Connections)}
	e, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1:0", cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := echo.Handle(e, func(_ context.Context, in message) (message, error) { return in, nil }); err != nil {
		return err
	}
	if err := json.NewEncoder(out).Encode(answer{Addr: e.Addr()}); err != nil {
		return err
	}
	return obey(in, out, func(o order) (a answer, err error) {
		switch o.Do {
		case doUsage:
			a.Usage, err = settledUsage()
			return a, err
		case doRest:
			a.Took, err = processorTime(o.For)
			return a, err
		case doProfile:
			return a, writeProfile(o.File)
		}
		return a, fmt.Errorf("unknown order %q", o.Do)
	})
}

// settledUsage collects garbage, returns free pages to the system, and reads the usage of this process.
func settledUsage() (u usage, err error) {
	runtime.GC() // a finalizer or a pool of the first one may leave something to the second
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	if u.Resident, err = residentSet(string(status)); err != nil {
		return u, err
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return u, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Heap, u.Stack, u.Other = int64(m.HeapInuse), int64(m.StackInuse), int64(m.MSpanInuse+m.MCacheInuse+m.GCSys+m.OtherSys+m.BuckHashSys)
	u.Goroutines, u.Files = int64(runtime.NumGoroutine()), int64(len(files))
	return u, nil
}

// residentSet returns the bytes of the resident set in the text of /proc/self/status.
func residentSet(status string) (int64, error) {
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no line VmRSS")
}

// processorTime returns the processor time of this process in the next d.
func processorTime(d time.Duration) (time.Duration, error) {
	used := func() (time.Duration, error) {
		var r unix.Rusage
		err := os.NewSyscallError("getrusage", unix.Getrusage(unix.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
	}
	begin, err := used()
	if err != nil {
		return 0, err
	}
	<-time.NewTimer(d).C
	end, err := used()
	return end - begin, err
}

func writeProfile(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	runtime.GC()
	return errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close())
}
