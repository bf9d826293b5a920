// Package rdmacore opens the RDMA devices of the machine, cards and the kernel's
// software devices alike.
//
//	devices, err := rdmacore.Devices()
//	if err != nil {
//		return err // says why there is none
//	}
//	dev, err := rdmacore.Open(devices[0].Name) // of several, the one that you want
//	if err != nil {
//		return err
//	}
//	defer dev.Close()
//
// The result of Open is a device like any other of package verbs.
//
// # Building
//
// With the build tag rdma and cgo, on Linux, all devices are driven by the libraries of rdma-core, libibverbs and librdmacm. To build so
// takes their headers (Debian: libibverbs-dev and librdmacm-dev), because their inline functions are the data path. The libraries themselves are
// opened at run time, so that one binary starts on every machine.
//
// Without them the package is pure Go. It then drives the kernel's own devices, rxe (RoCE v2) and siw (iWARP), by the kernel's interface for
// programs. It lists cards too, but Open says that they need rdma-core, because each kind of card has queues of its own form. On systems other than Linux,
// Devices and Open return an error.
//
// # How it works
//
// Flat arrays of integers cross the border to C, many work requests or
// completions at a time; no Go pointer is kept there, and no C code calls back. In pure Go, package uverbs reads and writes the queues in
// the memory that the driver shares with the program, so that a poll takes no system call, and a send one.
// Events of completion queues, devices and connections are read from
// descriptors in Go's poller, so that no thread waits in C. The package counts
// the requests in its queues itself, by tokens in the place of the program's work
// request ids, because devices round depths up and a failed completion does not
// say which queue it belongs to.
//
// All objects are safe for concurrent use, as verbs.DeviceDriver asks for.
//
// # Limits
//
// Queue pairs are of the types RC, UC and UD, as far as the device has them. Those
// of UC and UD are connected by hand, with package verbs/oob: the connection
// manager does RC only. An address handle is busy until the datagrams that were
// posted to it are known to be done. There is no multicast. iWARP devices connect
// through rdma_cm alone and have neither immediate data nor atomics here. Send with
// invalidate revokes keys of memory windows only, because the drivers take it for no other key. The right RemoteInvalidate is therefore
// ignored here; docs/real-hardware.md says which devices refuse a peer's invalidation of a region and which cannot.
package rdmacore
