package cinnabar

import (
	"strings"

	"cinnabar/internal/hg/wire"
)

// MercuryProtocol is the version of Mercury's headers that engines speak: that of Mercury 2.1 and later
// (HG_CORE_PROTOCOL_VERSION).
const MercuryProtocol = wire.Protocol

// Class tells about the network that an engine is on (HG_Class_get_name and its kin).
type Class struct {
	Name      string // of Mercury's plugin: "ofi", "na"
	Protocol  string // "tcp", "sm"
	Listening bool   // peers may send requests
	// InputEager and OutputEager are how many bytes of arguments and results fit a message. What is longer is fetched
	// by the other side, which takes two more messages.
	InputEager, OutputEager int
}

// Class returns what network the engine is on. With ChecksumsAuto the sizes are those towards peers whose messages carry
// no checksums; four bytes less fit towards others.
func (e *Engine) Class() Class {
	protocol, _, _ := strings.Cut(e.Addr(), "://")
	name, protocol, _ := strings.Cut(protocol, "+")
	headers := 16 // of Mercury's core and of HG: mercury_core_header.h, mercury_header.h
	if e.cfg.Checksums == WithChecksums {
		headers += 4
	}
	limits := e.net.Limits()
	return Class{
		Name: name, Protocol: protocol, Listening: e.Listening(),
		InputEager: limits.MaxRequest - headers, OutputEager: limits.MaxResponse - headers,
	}
}
