package ofiverbs

import "sync"

// processSet holds the numbers of the endpoints of this process.
type processSet struct{ m sync.Map }

// processes holds the numbers of all open endpoints of this process.
var processes processSet

// within reports whether the peer, which has sent the number process, is an endpoint of this process. If so, two goroutines may spin, one
// for each end of the connection (see [progress.Policy.AddPair]). within also compares the address, because every peer learns the number
// of this endpoint when it connects, and a remote peer could send that number back.
func (p *peer) within(process uint32) bool {
	return p.ep.ownsAddr(p.addr.Addr()) && processes.has(process)
}

func (s *processSet) add(process uint32)    { s.m.Store(process, true) }
func (s *processSet) remove(process uint32) { s.m.Delete(process) }

func (s *processSet) has(process uint32) bool {
	_, ok := s.m.Load(process)
	return ok
}
