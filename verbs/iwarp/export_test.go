package iwarp

import "cinnabar/verbs"

// Held tells what the connections of dev hold for want of a receive: messages and
// what they count in bytes, and whether one of the connections is not read for it.
func Held(dev *verbs.Device) (messages, bytes int, stalled bool) {
	d := dev.Driver().(*device)
	for _, c := range d.connections() {
		c.rxMu.Lock()
		messages += len(c.rx.held)
		bytes += c.rx.heldBytes
		stalled = stalled || c.rx.stalled
		c.rxMu.Unlock()
	}
	return messages, bytes, stalled
}

// connections returns the connections that are not over to the last goroutine.
func (d *device) connections() []*conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*conn
	for c := range d.conns {
		list = append(list, c)
	}
	return list
}

// Ended reports whether the peer of a connection of dev has ended its stream while
// messages were held.
func Ended(dev *verbs.Device) bool {
	for _, c := range dev.Driver().(*device).connections() {
		c.rxMu.Lock()
		eof := c.rx.eof
		c.rxMu.Unlock()
		if eof {
			return true
		}
	}
	return false
}

// MSS returns the size of TCP's segments on the connection of dev.
func MSS(dev *verbs.Device) int { return dev.Driver().(*device).connections()[0].sock.MSS() }

// MULPDU returns the largest ULPDU that the connection of dev sends.
func MULPDU(dev *verbs.Device) int {
	c := dev.Driver().(*device).connections()[0]
	c.txMu.Lock()
	defer c.releaseTx()
	return c.tx.mulpdu
}

// SetMULPDU makes the connection of dev believe that TCP's segments were of another size when it last looked.
func SetMULPDU(dev *verbs.Device, n int) {
	c := dev.Driver().(*device).connections()[0]
	c.txMu.Lock()
	defer c.releaseTx()
	c.tx.mulpdu = n
}
