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
// Engines on ofi+verbs were tried with each other on the software device and on the kernel's rxe and siw, and with programs of Mercury, Margo and Thallium on
// rxe. They were not tried on a card yet, because the project has none.
//
// [Open] opens a device that the operating system offers: InfiniBand, RoCE or iWARP. Cards need a build
// with rdma-core (package verbs/rdmacore).
// [Software] opens the software device of package verbs/iwarp, which works on every machine. Open never falls back to the software device,
// because programs in C with an unmodified Mercury cannot reach it. [Use] makes a [Device] of any [verbs.Device].
package auto
