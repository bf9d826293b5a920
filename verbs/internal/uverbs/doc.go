//go:build linux

// Package uverbs drives the kernel's software RDMA devices without C libraries.
//
// Commands go to /dev/infiniband/uverbsN: most by write(2) in the layout of
// rdma/ib_user_verbs.h, and the first ones by the ioctl of rdma/rdma_user_ioctl_cmds.h,
// because only that one carries the number of the driver that the program expects.
// Work requests and completions pass through queues that the kernel shares with the
// process; their layouts differ between drivers (interface provider).
//
// Errors are values of syscall.Errno, possibly wrapped, but for the *DriverError of Open.
//
// Callers serialise: the sends of a queue pair, the receives of a queue pair or of a
// shared receive queue, and the polls and arms of a completion queue, together with
// its resizing. Sends, receives and polls may run at the same time as each other.
// An object is closed when nothing else uses it, and before what it was made from.
package uverbs
