package envelope

import (
	"fmt"

	"cinnabar/codes"
	"cinnabar/internal/invariants"
)

// Streams has the streams that an engine serves, and bounds their number. The key of a stream is that of its call: the connection of the request and
// the id of the call. Streams is safe for concurrent use.
type Streams struct {
	limit int // streams of all hosts; one host has at most half of them

	mu invariants.Mutex
	// +checklocks:mu
	open map[callKey]openStream
	// +checklocks:mu
	hosts map[any]int // streams of each host
}

type openStream struct{ stream, host any }

// streamsPart divides the handlers: streams may have one in streamsPart of them, and one host one in streamsPart of those. The other handlers serve
// the frames of the streams.
const streamsPart = 2

// NewStreams returns an empty set for an engine with that limit of handlers.
func NewStreams(handlers int) *Streams {
	return &Streams{limit: handlers / streamsPart, open: map[callKey]openStream{}, hosts: map[any]int{}}
}

// Add adds a stream of a host. The error wraps [codes.Again] if there are too many.
func (s *Streams) Add(conn <-chan struct{}, id uint64, host, stream any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	each := (s.limit + 1) / streamsPart
	switch {
	case len(s.open) >= s.limit:
		return fmt.Errorf("%w: the engine serves %d streams, at most %d, half of Config.MaxHandlers", codes.Again, len(s.open), s.limit)
	case s.hosts[host] >= each:
		return fmt.Errorf("%w: the engine serves %d streams of this host, at most %d, a quarter of Config.MaxHandlers", codes.Again, s.hosts[host], each)
	}
	s.open[callKey{conn, id}] = openStream{stream, host}
	s.hosts[host]++
	return nil
}

// Find returns a stream of a connection, nil if there is none with that id.
func (s *Streams) Find(conn <-chan struct{}, id uint64) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[callKey{conn, id}].stream
}

// Remove removes a stream that was added.
func (s *Streams) Remove(conn <-chan struct{}, id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := callKey{conn, id}
	o, ok := s.open[k]
	if !ok {
		return
	}
	delete(s.open, k)
	if s.hosts[o.host]--; s.hosts[o.host] == 0 {
		delete(s.hosts, o.host)
	}
}
