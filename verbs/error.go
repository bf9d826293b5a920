package verbs

import "cinnabar/verbs/driver"

// Error is a failure of a call of this package: what was called, the class of
// failure (matched with [errors.Is]), and the thing, the limit and the remedy.
type Error = driver.Error

// StatusError is a completion that reports a failure; [WC.Err] makes it.
// errors.Is(err, StatusXxxErr) matches it.
type StatusError = driver.StatusError

// RejectedError is what [Dial] returns when the peer refused the connection.
type RejectedError = driver.RejectedError

// The classes of failure, matched with [errors.Is]. What a device cannot do at
// all matches [errors.ErrUnsupported].
var (
	// ErrInvalid: an argument that no device, or not this one, accepts (EINVAL).
	ErrInvalid = driver.ErrInvalid
	// ErrQueueFull: the queue has no room for the work request; poll completions first.
	ErrQueueFull = driver.ErrQueueFull
	// ErrBusy: the object cannot be closed while others depend on it (EBUSY).
	ErrBusy = driver.ErrBusy
	// ErrClosed: use of an object after its Close.
	ErrClosed = driver.ErrClosed
	// ErrLockLimit: the memory would exceed what the process may lock.
	ErrLockLimit = driver.ErrLockLimit
	// ErrDisconnected: the connection ended in order.
	ErrDisconnected = driver.ErrDisconnected
	// ErrCQOverrun: more completions came than the completion queue holds.
	ErrCQOverrun = driver.ErrCQOverrun
	// ErrDeviceRemoved: the device was unplugged, its driver was unloaded, or it
	// failed for good. Its objects can only be closed.
	ErrDeviceRemoved = driver.ErrDeviceRemoved
)
