// Package auto opens the RDMA device that has a given address, for engines that call over RDMA (cinnabar.Config.Device). It also prepares
// a device that the program has opened itself for use by engines.
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
// Programs of this module call each other over ofi+verbs on the software device, and tests do so. Two things have not been tried yet: a
// peer in C (Mercury, Margo) over ofi+verbs, although the bytes follow captures of such peers, and an engine on RDMA hardware. For peers in
// C use ofi+tcp.
//
// [Open] opens a device that the operating system offers: InfiniBand, RoCE or iWARP, in builds that reach them (package verbs/rdmacore).
// [Software] opens the software device of package verbs/iwarp, which works on every machine. Open never falls back to the software device,
// because programs in C with an unmodified Mercury cannot reach it. [Use] makes a [Device] of any [verbs.Device].
package auto
