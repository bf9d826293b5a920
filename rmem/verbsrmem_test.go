package rmem_test

import (
	"net/netip"

	"cinnabar/rmem"
	"cinnabar/rmem/verbsrmem"
	"cinnabar/verbs"
)

func init() {
	rmem.ListenVerbs = func(dev *verbs.Device, addr netip.AddrPort, cfg rmem.Config) (rmem.VerbsServer, error) {
		return verbsrmem.Listen(dev, addr, cfg)
	}
	rmem.DialVerbs = verbsrmem.Dial
}
