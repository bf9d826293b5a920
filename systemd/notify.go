package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// States of a service for [Notify].
const (
	Ready    = "READY=1"    // the service serves
	Stopping = "STOPPING=1" // the service ends, and may still finish requests
	alive    = "WATCHDOG=1" // the engine serves; only Watchdog sends it
)

const (
	// notifyTime bounds the sending of one message, because a manager that does not read must not block the service.
	notifyTime = 5 * time.Second
	// maxNotify is the most bytes of one message, as in systemd.
	maxNotify = 4096
	maxStatus = 1024 // bytes of the text of Status, which has room beside other states
	// maxSocketPath is the most bytes of the path of a Unix socket on all systems.
	maxSocketPath = 103
)

// Status returns a state for [Notify] that systemctl status prints. A line break in text becomes a space, and of a long text the beginning is left.
func Status(text string) string {
	if len(text) > maxStatus {
		text = strings.ToValidUTF8(text[:maxStatus], "") + "..."
	}
	return "STATUS=" + strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ").Replace(text)
}

// Notify sends states to the service manager, in one message. It reports whether there is a manager; without one it does nothing.
// ctx bounds the sending, and so do 5 s. Notify is safe for concurrent use.
func Notify(ctx context.Context, states ...string) (sent bool, err error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" || len(states) == 0 {
		return false, nil
	}
	if err := send(ctx, path, strings.Join(states, "\n")); err != nil {
		return true, fmt.Errorf("notify the service manager at NOTIFY_SOCKET=%q: %w", path, err)
	}
	return true, nil
}

// send sends one message to the Unix socket at path. A path that begins with @ names an abstract socket of Linux.
func send(ctx context.Context, path, message string) (err error) {
	switch {
	case path[0] != '/' && path[0] != '@':
		return errors.New("the path is neither absolute nor one of an abstract socket, which begins with @")
	case len(path) > maxSocketPath:
		return fmt.Errorf("the path has %d bytes; at most %d are possible", len(path), maxSocketPath)
	case len(message) > maxNotify:
		return fmt.Errorf("the message has %d bytes; at most %d are possible", len(message), maxNotify)
	}
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixgram", path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // fails only on a closed connection
	defer stop()
	_, err = c.Write([]byte(message))
	return err
}

// WatchdogTime returns the time after which the manager takes the service for dead unless [Watchdog] reports that it is alive, 0 without a watchdog.
func WatchdogTime() (time.Duration, error) {
	text := os.Getenv("WATCHDOG_USEC")
	if text == "" {
		return 0, nil
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" {
		n, err := strconv.ParseUint(pid, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("WATCHDOG_PID=%q is no process id", pid)
		}
		if int(n) != os.Getpid() {
			return 0, nil // the watchdog watches another process, such as the parent
		}
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 || n > uint64(maxWatchdog/time.Microsecond) {
		return 0, fmt.Errorf("WATCHDOG_USEC=%q is no number of microseconds from 1 to %d", text, maxWatchdog/time.Microsecond)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// maxWatchdog is the longest time that WatchdogTime accepts.
const maxWatchdog = 365 * 24 * time.Hour

// Watchdog calls check twice within each [WatchdogTime], and reports the service alive after each call that returns nil, until ctx ends. check must try
// the work of the service, as [Probe.Check] does, because a service that only runs a timer would be reported alive after it has hung.
// The context of check ends after half the time. Watchdog calls failed with each error of check, and of the sending; failed may be nil.
// Without a watchdog it returns at once. The error of Watchdog is one of the environment.
func Watchdog(ctx context.Context, check func(context.Context) error, failed func(error)) error {
	limit, err := WatchdogTime()
	if err != nil || limit == 0 {
		return err
	}
	half := max(limit/2, time.Microsecond)
	for ctx.Err() == nil {
		began := time.Now()
		err := within(ctx, half, check)
		if err == nil {
			_, err = Notify(ctx, alive)
		}
		if err != nil && failed != nil && ctx.Err() == nil {
			failed(err)
		}
		pause(ctx, half-time.Since(began))
	}
	return nil
}

// within calls check with a context that ends after d.
func within(ctx context.Context, d time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return check(ctx)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
