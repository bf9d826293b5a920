package main

import (
	"context"
	"errors"
	"fmt"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

const (
	// idControl is added to the slot of a control message; the ids of messages are their slots.
	idControl    = 100
	controlSlots = 8
	depth        = slots + 4
)

// side is one end of the conversation. It belongs to one goroutine.
type side struct {
	ep                   *rdmacm.Endpoint
	data, local, control *verbs.MR
	nextControl          int              // slot
	peer                 verbs.RemoteAddr // its slots
}

// endpointConfig is the configuration of both roles.
var endpointConfig = rdmacm.EndpointConfig{
	QP: verbs.QPConfig{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1},
}

// param has the connection parameters of both sides.
var param = verbs.ConnParam{ResponderResources: slots, InitiatorDepth: slots, RNRRetry: verbs.MaxRNRRetry}

// newSide registers the memory of an endpoint, which the side closes.
func newSide(ep *rdmacm.Endpoint) (*side, error) {
	s := &side{ep: ep}
	for _, r := range []struct {
		to     **verbs.MR
		size   int
		access verbs.Access
	}{
		{&s.data, slots * stride, verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead},
		{&s.local, slots * stride, verbs.LocalWrite},
		{&s.control, controlSlots * controlLen, verbs.LocalWrite},
	} {
		mr, err := ep.PD().AllocMR(r.size, r.access)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		*r.to = mr
	}
	return s, nil
}

func (s *side) close() error {
	err := s.ep.QP().Close()
	for _, mr := range []*verbs.MR{s.data, s.local, s.control} {
		if mr != nil {
			err = errors.Join(err, mr.Close())
		}
	}
	return errors.Join(err, s.ep.Close())
}

// slot returns slot k of a region.
func slot(mr *verbs.MR, k int) []byte { return mr.Bytes()[k*stride : (k+1)*stride] }

// why replaces an error that only says that the connection is over by the reason.
func (s *side) why(err error) error {
	if c := s.ep.Conn(); c != nil && errors.Is(err, verbs.StatusWRFlushErr) {
		<-c.Done()
		return c.Err()
	}
	return err
}

// sent waits for n completions of the send queue.
func (s *side) sent(ctx context.Context, n int) error {
	for range n {
		if _, err := s.ep.SendComp(ctx); err != nil {
			return fmt.Errorf("a request failed: %w", s.why(err))
		}
	}
	return nil
}

// takeSlot gives the next slot of the control region; few are in use at a time.
func (s *side) takeSlot() int {
	s.nextControl++
	return s.nextControl % controlSlots
}

// expectControl posts a receive for a control message.
func (s *side) expectControl() error {
	k := s.takeSlot()
	return s.ep.PostRecv(uint64(idControl+k), s.control, k*controlLen, controlLen)
}

// controlWR is the request that sends c, with the address of this side's slots.
func (s *side) controlWR(c control) verbs.SendWR {
	k := s.takeSlot()
	c.remote = s.data.Remote()
	putControl(s.control.Bytes()[k*controlLen:(k+1)*controlLen], c)
	return verbs.SendWR{ID: idControl, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{s.control.SGE(k*controlLen, controlLen)}}
}

// sendControl sends c and waits until it is sent.
func (s *side) sendControl(ctx context.Context, c control) error {
	if err := s.post(s.controlWR(c)); err != nil {
		return err
	}
	return s.sent(ctx, 1)
}

// post posts requests, all of which must be accepted.
func (s *side) post(wrs ...verbs.SendWR) error {
	if n, err := s.ep.QP().PostSend(wrs); err != nil {
		return fmt.Errorf("post request %d of %d: %w", n+1, len(wrs), err)
	}
	return nil
}

// recvControl waits for a control message, which must be of that kind.
func (s *side) recvControl(ctx context.Context, kind uint32) (control, error) {
	wc, err := s.ep.RecvComp(ctx)
	if err != nil {
		return control{}, fmt.Errorf("a receive failed: %w", s.why(err))
	}
	if wc.ID < idControl {
		return control{}, fmt.Errorf("receive %d got %d bytes instead of a control message", wc.ID, wc.Len)
	}
	at := int(wc.ID-idControl) * controlLen
	c, err := parseControl(s.control.Bytes()[at : at+min(int(wc.Len), controlLen)])
	if err == nil && c.kind != kind {
		err = fmt.Errorf("control message of kind %d instead of %d", c.kind, kind)
	}
	s.peer = c.remote
	return c, err
}
