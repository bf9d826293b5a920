//go:build linux

package rdmacore

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"

	"cinnabar/verbs"
)

// removal records a device's own end: it was unplugged, its driver
// was unloaded, or it failed for good. The news comes by one of three ways. A
// driver that can take a device from its users raises IBV_EVENT_DEVICE_FATAL and
// lets every later call fail with EIO, reading events among them. For a driver
// that cannot, such as rxe and siw, the connection manager reports the removal: the
// kernel waits then until the users have closed everything.
type removal struct {
	begun atomic.Bool
	gone  chan struct{} // closed by remove
}

// isGone reports whether the device was removed.
func (r *removal) isGone() bool {
	select {
	case <-r.gone:
		return true
	default:
		return false
	}
}

// remove handles the removal of the device. It ends connections, flushes queue
// pairs as far as the driver still does, and wakes all waiters.
func (d *device) remove() {
	if d.removal.begun.Swap(true) {
		return
	}
	d.mu.RLock()
	qps := slices.Collect(maps.Values(d.qps))
	d.mu.RUnlock()
	cause := d.removedErr("connection")
	for _, q := range qps {
		q.broken(cause)
		q.condemn()
	}
	close(d.removal.gone)
	d.events.Add(verbs.DeviceEvent{Type: verbs.EventDeviceFatal, Err: d.removedErr("device")})
	d.mu.RLock()
	cqs := slices.Collect(maps.Values(d.cqs)) // a later one finds the device gone before it waits
	d.mu.RUnlock()
	for _, c := range cqs {
		c.notify()
	}
}

// condemn moves a queue pair to ERR that has no connection to do so at its end.
func (q *qp) condemn() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.conn != nil || verbs.QPState(q.state.Load()) == verbs.StateReset {
		return
	}
	attr := verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}
	_ = modifyQP(q.h, &attr, 0) // it refuses only when nothing is left to flush
	q.state.Store(uint32(verbs.StateErr))
}

// removedErr returns the error of operation op on a device that has been removed.
func (d *device) removedErr(op string) error {
	return verbs.Errorf(op, verbs.ErrDeviceRemoved, "%s was unplugged, its driver was unloaded, or it failed; close its objects, and open the device again when it is back", d.name)
}

// usable returns an error if the device has been removed or closed, because operation op needs it.
func (d *device) usable(op string) error {
	if d.removal.isGone() {
		return d.removedErr(op)
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the device is closed")
	}
	return nil
}

// released is the result of a destroying call: an object of a device that is
// gone is gone with it, and the library says EIO.
func (d *device) released(err error) error {
	if d.removal.isGone() && (errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV)) {
		return nil
	}
	return err
}
