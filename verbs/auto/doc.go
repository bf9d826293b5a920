// Package auto opens the RDMA device for an address, and makes of an opened device the one that an engine uses for RPC over RDMA
// (cinnabar.Config.Device).
//
//	dev, err := auto.Open("ofi+verbs://192.168.1.7:1234")
//	if err != nil {
//		return err
//	}
//	defer dev.Close()
//	e, err := cinnabar.Listen(ctx, "ofi+verbs://192.168.1.7:1234", &cinnabar.Config{Device: dev})
//	...
//	e.Close() // before the device
//
// Programs of this module call each other over ofi+verbs on the device in software, and the tests do. Two things have not been tried yet:
// a peer in C (Mercury, Margo) over ofi+verbs, although its bytes are those that such peers were seen to send, and an engine on a device of
// the machine. For peers in C use ofi+tcp.
//
// [Open] takes a device of this machine: InfiniBand, RoCE or iWARP, in builds that reach them (package verbs/rdmacore). [Software] opens
// the device in software of package verbs/iwarp, which every machine has. It is never taken in place of another, because programs in C
// with an unmodified Mercury cannot reach it. [Use] makes a [Device] of any [verbs.Device].
package auto
