// Package verbstest is the conformance suite of RDMA devices, as
// golang.org/x/net/nettest is for net.Conn. The author of a device calls it from
// a test of the device's package:
//
//	func TestConformance(t *testing.T) {
//		verbstest.TestDevice(t, func(t *testing.T, o verbstest.Options) *verbs.Device {
//			dev, err := mydevice.Open(mydevice.Config{LockMemory: o.LockMemory})
//			if err != nil {
//				t.Fatal(err)
//			}
//			return dev
//		})
//	}
//
// Each sub-test opens a device of its own, closes it, and fails if a goroutine,
// a descriptor or a mapping is left behind. The suite asks the device's
// capabilities for optional operations; a device must refuse an operation that it
// lacks by name, which is then tested. Options that a device cannot be opened with are skipped by
// the function that opens it.
//
// [NewPair] is exported for other tests that need two connected queue pairs on
// one device.
//
// The suite needs the device to reach itself through its loopback address. Its
// size follows testing.Short and the race detector: with either, the largest
// transfers are smaller and the random histories shorter. It measures nothing.
package verbstest
