package hg

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/na"
)

// ackSize is the length of the message that says that an overflow has been pulled. Its content means nothing.
const ackSize = 1

var errShortPull = errors.New("peer has sent less of the payload than it has announced")

// lentError says why the descriptor of an overflow is refused.
type lentError struct {
	code Code
	err  error
}

func (e *lentError) about(op string, a na.Addr) *Error { return newError(op, a, e.code, e.err) }

// appendLent appends what stands for n bytes of payload in mem: what hg_proc_hg_bulk_t writes for one read-only segment,
// never with the data inside.
func appendLent(b []byte, mem na.Memory, n int) []byte {
	return appendSized(b, func(b []byte) []byte {
		b = appendInfo(b, uint64(n), 1, flagReadOnly)
		b = appendSegment(b, lentBase, uint64(n))
		return appendSized(b, mem.AppendHandle)
	})
}

// lentBase is the base address of lent payloads. It must not be zero, and means nothing else to the peer.
const lentBase = 0x1000

// linger leaves a payload to a peer that may still pull it although nobody waits for that any more. Revoking it at once
// would cost the connection, and everything else that goes over it: a peer that is asked for memory which does not exist
// hangs up, since the protocol has no other answer.
func (c *Class) linger(lent na.Memory, peer na.Addr, limit time.Duration) {
	gone := peer.Done()
	c.count.lingering.Add(1)
	c.tasks.start(func() {
		defer c.count.lingering.Add(-1)
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

// checkLent reads the descriptor of an overflow and charges its size to the budget. b is hostile.
func (c *Class) checkLent(b []byte, charged *int64) (*Desc, *lentError) {
	d, _, err := DecodeProc(b)
	switch {
	case err != nil:
		return nil, &lentError{ProtocolError, err}
	case d == nil:
		return nil, &lentError{ProtocolError, errors.New("overflow without a descriptor")}
	case d.Len() > uint64(c.cfg.MaxOverflow):
		return nil, &lentError{Overflow, fmt.Errorf("payload of %d bytes, at most %d are accepted (Config.MaxOverflow)", d.Len(), c.cfg.MaxOverflow)}
	}
	n := int64(d.Len())
	if c.count.budget.Add(n) > c.cfg.OverflowBudget {
		c.count.budget.Add(-n)
		return nil, &lentError{Again, fmt.Errorf("no room for a payload of %d bytes: all payloads together may have %d (Config.OverflowBudget)", n, c.cfg.OverflowBudget)}
	}
	*charged = n
	return d, nil
}

// refund gives back what checkLent has charged.
func (c *Class) refund(charged *int64) {
	if *charged != 0 {
		c.count.budget.Add(-*charged)
		*charged = 0
	}
}
