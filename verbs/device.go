package verbs

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

// Device is an opened RDMA device. All methods are safe for concurrent use.
type Device struct {
	drv DeviceDriver
	dependents

	attrMu sync.Mutex
	// Limits, cached because they do not change.
	attr *DeviceAttr // +checklocks:attrMu

	log       atomic.Pointer[slog.Logger]
	forgotten atomic.Uint64 // memory regions that were collected without Close
}

// NewDevice returns the Device of drv. It takes over drv, which is closed by [Device.Close]. Packages that implement a
// device call it; programs get their devices from those packages.
func NewDevice(drv DeviceDriver) *Device { return &Device{drv: drv} }

// Driver returns the device below, for layers that wrap it.
func (d *Device) Driver() DeviceDriver { return d.drv }

// SetLogger sets the logger for mistakes that no call can return: a
// memory region that was collected without Close. Nil, the default, is nowhere.
func (d *Device) SetLogger(l *slog.Logger) { d.log.Store(l) }

// Query describes the device as it is now.
func (d *Device) Query() (DeviceAttr, error) { return d.drv.Query() }

// Stats returns a snapshot of the device's counters. The counter "mr_forgotten"
// is this package's: memory regions that were collected without Close.
func (d *Device) Stats() Stats {
	s := Stats{}
	for k, v := range d.drv.Stats() {
		s[k] = v
	}
	s["mr_forgotten"] = d.forgotten.Load()
	return s
}

// limits returns the attributes as they were at the first call.
func (d *Device) limits() (*DeviceAttr, error) {
	d.attrMu.Lock()
	defer d.attrMu.Unlock()
	if d.attr == nil {
		a, err := d.drv.Query()
		if err != nil {
			return nil, err
		}
		d.attr = &a
	}
	return d.attr, nil
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	const op = "allocate protection domain"
	if err := d.addDependent(childPD, op, "device"); err != nil {
		return nil, err
	}
	p, err := d.drv.AllocPD()
	if err != nil {
		d.removeDependent(childPD)
		return nil, err
	}
	return &PD{dev: d, drv: p, regs: map[*registration]struct{}{}}, nil
}

// Close releases the device. While objects of it are open, Close fails with
// [ErrBusy], and the error has their kinds and numbers. A second Close does nothing.
func (d *Device) Close() error { return d.closeUnlessBusy("close device", d.drv.Close) }

// checkLimit refuses v unless it is from min to the device's limit. A limit of
// 0 means that the device states none.
func checkLimit(op, what string, v, min, limit int, attr string) error {
	if v < min {
		return Errorf(op, ErrInvalid, "%s is %d, the least is %d", what, v, min)
	}
	if limit > 0 && v > limit {
		return Errorf(op, ErrInvalid, "%s is %d, over the device's limit of %d (DeviceAttr.%s)", what, v, limit, attr)
	}
	return nil
}
