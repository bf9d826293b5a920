package fault

import (
	"errors"
	"slices"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
)

// heldSend is a request that was accepted and waits behind the gate, with
// copies of all that the program may reuse after the post.
type heldSend struct {
	wr  verbs.SendWR
	do  Action
	mr  verbs.MRDriver // the region of the inline data; nil: there is none
	mem []byte         // the mapped memory of the inline data
}

// hold keeps a request.
func (q *qp) hold(wr *verbs.SendWR, do Action) error {
	if depth := q.init.Cap.MaxSendWR; len(q.held) >= depth {
		return verbs.Errorf("post send", verbs.ErrQueueFull, "all %d entries of the send queue wait behind an injected fault", depth)
	}
	h := heldSend{wr: *wr, do: do}
	h.wr.SGL = slices.Clone(wr.SGL)
	if wr.Flags&verbs.Inline != 0 {
		if err := h.copyInline(q.pd); err != nil {
			return err
		}
	}
	q.held = append(q.held, h)
	return nil
}

// copyInline takes a copy of the payload, which the program may change as soon
// as the post is over, and registers it, because devices in software reach memory
// by its key even where a key is not asked for.
func (h *heldSend) copyInline(p *pd) error {
	data, ok := p.gather(h.wr.SGL)
	if !ok {
		return verbs.Errorf("post send", verbs.ErrInvalid, "inline data outside registered memory")
	}
	if len(data) == 0 {
		return nil
	}
	mem, err := hostmem.Map(len(data))
	if err != nil {
		return err
	}
	copy(mem, data)
	m, err := p.inner.RegMR(verbs.MRInit{Bytes: mem, Addr: hostmem.Addr(mem)}, 0)
	if err != nil {
		return errors.Join(err, hostmem.Unmap(mem))
	}
	h.mem, h.mr = mem, m
	h.wr.SGL = []verbs.SGE{{Addr: hostmem.Addr(mem), Length: uint32(len(data)), LKey: m.LKey()}}
	return nil
}

// gather copies the bytes that a list names.
func (p *pd) gather(sgl []verbs.SGE) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var data []byte
	for _, s := range sgl {
		m := p.regions[s.LKey]
		if m == nil {
			return nil, false
		}
		r := m.init
		off, size := s.Addr-r.Addr, uint64(len(r.Bytes))
		if off > size || uint64(s.Length) > size-off {
			return nil, false
		}
		data = append(data, r.Bytes[off:off+uint64(s.Length)]...)
	}
	return data, true
}

// release lets go of the copy. The device has taken the bytes during the post.
func (h *heldSend) release() {
	if h.mr != nil {
		// Nothing can be done about a failure, and nothing depends on success.
		_ = h.mr.Close()
		_ = hostmem.Unmap(h.mem)
		h.mr, h.mem = nil, nil
	}
}
