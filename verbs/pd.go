package verbs

import (
	"sync"
)

// PD is a protection domain: memory regions, queue pairs and shared receive
// queues work only with others of the same domain. All methods are safe for
// concurrent use.
type PD struct {
	dev *Device
	drv PDDriver
	dependents

	// regs are the live registrations. They hang here and not on the MR, since
	// the runtime ends the program when a pin is collected before it was undone.
	regsMu sync.Mutex
	regs   map[*registration]struct{} // +checklocks:regsMu
}

// Device returns the device of the domain.
func (pd *PD) Device() *Device { return pd.dev }

// CreateAH makes an address handle for unreliable datagrams of queue pairs of the
// domain. The caller closes it before the domain, and after the datagrams that
// were posted to it are done.
func (pd *PD) CreateAH(attr AHAttr) (AddressHandle, error) { return pd.drv.CreateAH(attr) }

// Close releases the domain. While memory regions, queue pairs or shared receive queues
// of it are open, Close fails with [ErrBusy], and the error has their kinds and numbers. A
// second Close does nothing.
func (pd *PD) Close() error {
	return pd.closeUnlessBusy("close protection domain", func() error {
		if err := pd.drv.Close(); err != nil {
			return err
		}
		pd.dev.removeDependent(childPD)
		return nil
	})
}
