package hg

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// lentError says why the descriptor of an overflow is refused.
type lentError struct {
	code codes.Code
	err  error
}

func (e *lentError) about(op string, a na.Addr) *Error { return newError(op, a, e.code, e.err) }

// linger keeps the memory of a payload for a while after the end of its call or request, because the peer may still pull it. An access to
// revoked memory would end the connection and all operations over it, because the protocol has no other answer. linger revokes
// the memory at once, at that price, if the host of the peer holds its share of memory. It calls after at the end.
func (c *Class) linger(lent na.Memory, n int, peer na.Addr, after func()) {
	gone, limit := peer.Done(), patience(ackTime, n)
	c.count.lingering.Add(1)
	account := peer.Account()
	if err := account.Take(hostquota.Memory, int64(n)); err != nil {
		c.refused(peer, "no room for a payload to linger", err)
		account, limit = nil, 0
	}
	c.tasks.Go(func() {
		defer after()
		defer c.count.lingering.Add(-1)
		defer func() {
			if account != nil {
				account.Give(hostquota.Memory, int64(n))
			}
		}()
		defer lent.Close()
		if gone == nil { // there has never been a connection
			return
		}
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-gone:
		case <-c.closing:
		}
	})
}

// checkLent reads the descriptor of an overflow, which is hostile, in a message from a peer.
func (c *Class) checkLent(b []byte, from na.Addr) (*Desc, *lentError) {
	d, _, err := DecodeProc(b, c.RouteTo(from))
	switch {
	case err != nil:
		return nil, &lentError{codes.ProtocolError, err}
	case d == nil:
		return nil, &lentError{codes.ProtocolError, errors.New("overflow without a descriptor")}
	case d.Len() > uint64(c.cfg.MaxOverflow):
		return nil, &lentError{codes.Overflow, fmt.Errorf("payload of %d bytes, at most %d are accepted (Config.MaxOverflow): use a bulk transfer", d.Len(), c.cfg.MaxOverflow)}
	}
	return d, nil
}
