package filetransfer

import (
	"errors"
	"fmt"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// OpenDevice opens the machine's RDMA device of that name, or the software device, which every machine has, if name is
// empty. Its error says why there is no such device, or which ability the device lacks.
func OpenDevice(name string) (*verbs.Device, error) {
	dev, err := open(name)
	if err != nil {
		return nil, err
	}
	if err := check(dev); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}

func open(name string) (*verbs.Device, error) {
	if name == "" {
		return iwarp.Open(iwarp.Config{})
	}
	return rdmacore.Open(name)
}

// check refuses a device without an ability that the protocol needs, such as those of iWARP (the paper's section 4.1).
func check(dev *verbs.Device) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	if !attr.Caps.Has(verbs.CapWriteImm) {
		return fmt.Errorf("device %s has no write with immediate data, which this protocol needs; cinnabar send and recv do without", attr.Name)
	}
	return nil
}

// LongestMessage returns how many bytes one write may have on dev, at most BufferSize.
func LongestMessage(dev *verbs.Device) (int, error) {
	attr, err := dev.Query()
	if err != nil {
		return 0, err
	}
	longest := uint64(BufferSize)
	for _, p := range attr.Ports {
		if p.MaxMsgSize > 0 { // 0: the device has no such limit
			longest = min(longest, p.MaxMsgSize)
		}
	}
	return int(longest), nil
}
