package inspect

import (
	"errors"
	"strings"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/margo"
	"cinnabar/verbs/auto"
)

// verbsName is the name that Mercury gives to its protocol over RDMA devices.
const verbsName = "verbs;ofi_rxm"

// verbsProtocols returns one line of ofi+verbs for each RDMA device of this machine, in the order in which package auto tries the devices,
// and a last one for the software device.
func verbsProtocols() []margo.Protocol {
	var list []margo.Protocol
	found, err := auto.Candidates("ofi+verbs")
	if err != nil {
		list = append(list, margo.Protocol{Class: "ofi", Name: verbsName, Err: err})
	}
	for _, c := range found {
		list = append(list, margo.Protocol{Class: "ofi", Name: verbsName, Device: c.Name, Err: c.Err})
	}
	return append(list, margo.Protocol{Class: "ofi", Name: verbsName, Device: cli.SoftwareDevice})
}

// tryVerbs opens an engine on the RDMA device of p and closes it. It returns p with the engine's address or the error, and the address with
// the port in runtime.
func tryVerbs(p margo.Protocol, cfg *cinnabar.Config) (_ margo.Protocol, runtime string) {
	dev, err := openNamed(p.Device)
	if err == nil {
		on := cinnabar.Config{}
		if cfg != nil {
			on = *cfg
		}
		on.Interface, on.Device = "", dev // an engine on a device refuses Interface
		runtime, err = listen(p, &on)
		err = errors.Join(err, dev.Close())
	}
	if err != nil {
		p.Err = err
		return p, ""
	}
	p.Addr = runtime[:strings.LastIndexByte(runtime, ':')]
	return p, runtime
}

// openNamed opens the RDMA device of that name.
func openNamed(name string) (*auto.Device, error) {
	if name == cli.SoftwareDevice {
		return auto.Software(nil)
	}
	return auto.Open("ofi+verbs://" + name)
}

// chooseDevice returns the RDMA device that engines use without --device, and the reason.
func (r *infoReport) chooseDevice() infoChosen {
	chosen := infoChosen{Protocol: "ofi+" + verbsName, Reason: "the software device " + cli.SoftwareDevice + " is used on request only (--device software), because unmodified C programs cannot reach it"}
	found, err := auto.Candidates("ofi+verbs")
	if err != nil {
		chosen.Reason = cli.OneLine(err) + "; " + chosen.Reason
		return chosen
	}
	for _, c := range found {
		for _, l := range r.Protocols {
			if c.Err == nil && l.Device == c.Name && l.Protocol == verbsName {
				chosen.Address, chosen.Reason = l.Address, "device "+c.Name+", "+c.Reason
				return chosen
			}
		}
	}
	chosen.Reason = "no device of this machine can be used; " + chosen.Reason
	return chosen
}
