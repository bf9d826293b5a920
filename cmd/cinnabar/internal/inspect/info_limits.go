package inspect

import (
	"fmt"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/hostquota"
	"cinnabar/xfer"
)

// infoLimits are the default limits on the memory and the connections that peers can make one engine, device or receiver
// hold: those of a configuration that leaves them 0.
type infoLimits struct {
	Of                string `json:"of"`
	MaxMemory         int64  `json:"max_memory"` // bytes
	MemorySource      string `json:"max_memory_source"`
	MaxConnections    int64  `json:"max_connections"`
	ConnectionsSource string `json:"max_connections_source"`
}

// Descriptors that a connection takes.
const (
	engineDescriptors   = 2
	deviceDescriptors   = 3
	receiverDescriptors = 4
)

// engineLeastMemory is the smallest MaxMemory of an engine in bytes. It is the default on machines with less than twice as much
// memory.
const engineLeastMemory = 32 << 20

// theLeast is the source of a limit that is the smallest possible one, not computed from the machine's resources.
const theLeast = "the least by default"

// engineConnectionBytes is how many bytes of MaxMemory an engine needs for each connection: it reserves 64 KiB, and
// connections may take an eighth of the memory.
const engineConnectionBytes = 8 * 64 << 10

// defaultLimits returns the limits on a machine of that capacity. A receiver's limits are those of its zero value, on this
// machine.
func defaultLimits(m hostquota.Capacity) []infoLimits {
	half := "half of " + m.MemorySource
	engine := infoLimits{Of: "engine", MaxMemory: m.DefaultMemory(), MemorySource: half,
		MaxConnections: m.DefaultConnections(engineDescriptors), ConnectionsSource: m.FilesSource}
	if engine.MaxMemory < engineLeastMemory {
		engine.MaxMemory, engine.MemorySource = engineLeastMemory, theLeast
	}
	if most := engine.MaxMemory / engineConnectionBytes; most < engine.MaxConnections {
		engine.MaxConnections, engine.ConnectionsSource = max(most, 1), "an eighth of its memory"
	}
	device := infoLimits{Of: "software device", MaxMemory: m.DefaultMemory(), MemorySource: half,
		MaxConnections: m.DefaultConnections(deviceDescriptors), ConnectionsSource: m.FilesSource}
	connections, memory := new(xfer.Receiver).Limits()
	return []infoLimits{engine, device, receiverLimits(m, int64(connections), memory)}
}

// receiverLimits returns the limits of a receiver with the sources that they have on a machine of that capacity.
func receiverLimits(m hostquota.Capacity, connections, memory int64) infoLimits {
	l := infoLimits{Of: "receiver of files", MaxMemory: memory, MemorySource: "half of " + m.MemorySource,
		MaxConnections: connections, ConnectionsSource: m.FilesSource}
	switch half := m.DefaultMemory(); {
	case memory < half:
		l.MemorySource = "the most by default"
	case memory > half:
		l.MemorySource = theLeast
	}
	if connections < m.DefaultConnections(receiverDescriptors) {
		l.ConnectionsSource = "the most by default"
	}
	return l
}

// writeLimits prints the limits as a table.
func (r *infoReport) writeLimits(i *cli.Printer) {
	if len(r.Limits) == 0 {
		return
	}
	i.Printf("\nDEFAULT LIMIT OF\tMAX MEMORY\tMAX CONNECTIONS\n")
	for _, l := range r.Limits {
		i.Printf("%s\t%s\t%s\n", l.Of, fmt.Sprintf("%s, %s", cli.SizeText(l.MaxMemory), l.MemorySource), fmt.Sprintf("%d, %s", l.MaxConnections, l.ConnectionsSource))
	}
}
