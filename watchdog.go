package cinnabar

import "cinnabar/internal/sched"

// described is what the pools of an engine work on, as people are told of it.
type described interface {
	sched.Work
	// describe may be called at any time, also after the work is done.
	describe() (e *Engine, label, peer string)
}

func (s *serving) describe() (e *Engine, label, peer string) {
	return s.svc.e, s.svc.label(), s.from.String()
}

// describe implements [described].
func (w *work[In, Out]) describe() (e *Engine, label, peer string) { return w.s.describe() }

// warnSlow reports a handler that takes long: see Config.HandlerWarning.
func warnSlow(s sched.Sighting) {
	d, ok := s.Work.(described)
	if !ok {
		return
	}
	e, label, peer := d.describe()
	e.log.Warn("handler takes long", logRPC, label, logPeer, peer, logAge, s.Run, logState, s.State.String())
}
