package xfer

import (
	"errors"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// eventLog is a machine that keeps the events it gets.
type eventLog struct{ events []event }

func (r *eventLog) step(ev event, acts []action) []action {
	r.events = append(r.events, ev)
	return acts
}

func (r *eventLog) awaits() string { return "nothing" }

// A peer uses up receives by operations that they were not posted for: a write whose length is that of its own target, a message with
// immediate data, one that revokes a key. No machine takes their lengths or bytes for those of a message.
func TestReceiveOfAnotherKindIsRefused(t *testing.T) {
	dev := device(t, iwarp.Config{})
	for _, bare := range []bool{false, true} {
		l := must(newResources(dev, 1, bare, false))(t)
		m := &eventLog{}
		s := &session{res: l, machine: m}
		for _, wc := range []verbs.WC{
			{ID: receiveID(0), Op: verbs.WCRecv, HasImm: true, Imm: 7, Len: 24},
			{ID: receiveID(0), Op: verbs.WCRecv, HasInv: true, InvKey: 7},
			{ID: receiveID(0), Op: verbs.WCRecvRDMAImm, Len: 24},
			{ID: receiveID(0), Op: verbs.WCRecv, Len: 1 << 20},
			{ID: receiveID(0), Op: verbs.WCWrite, Len: 24},
		} {
			s.mu.Lock()
			s.completeLocked(&wc)
			s.mu.Unlock()
			ev := m.events[len(m.events)-1]
			if ev.kind != evReceived || !errors.Is(ev.err, CodeProtocol) || ev.data != nil || ev.hasImm || ev.n != 0 {
				t.Errorf("%+v becomes %+v", wc, ev)
			}
			for _, m := range []machine{&basicServer{}, newFastServer(agreement{buffers: 1}, verbs.RemoteAddr{}), &basicClient{}, newFastClient(agreement{buffers: 1}, "f", nil)} {
				acts := m.step(ev, nil)
				if last := acts[len(acts)-1]; last.kind != actFinish || !errors.Is(last.err, CodeProtocol) {
					t.Errorf("%T takes %+v for %+v", m, ev, last)
				}
			}
		}
		s.mu.Lock()
		s.completeLocked(&verbs.WC{ID: receiveID(0), Op: verbs.WCRecvRDMAImm, HasImm: true, Imm: 5, Len: 1 << 30})
		s.mu.Unlock()
		if ev := m.events[len(m.events)-1]; ev.err != nil || !ev.hasImm || ev.imm != 5 || ev.n != 0 || ev.data != nil {
			t.Errorf("immediate data becomes %+v", ev)
		}
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}
}
