package hg

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// ackSize is the length of the message that says that an overflow has been pulled. Its content means nothing.
const ackSize = 1

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
// hangs up, since the protocol has no other answer. It does cost that when the host of the peer has its share of memory. after
// is called at the end.
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

// checkLent reads the descriptor of an overflow, which is hostile.
func (c *Class) checkLent(b []byte) (*Desc, *lentError) {
	d, _, err := DecodeProc(b)
	switch {
	case err != nil:
		return nil, &lentError{ProtocolError, err}
	case d == nil:
		return nil, &lentError{ProtocolError, errors.New("overflow without a descriptor")}
	case d.Len() > uint64(c.cfg.MaxOverflow):
		return nil, &lentError{Overflow, fmt.Errorf("payload of %d bytes, at most %d are accepted (Config.MaxOverflow): use a bulk transfer", d.Len(), c.cfg.MaxOverflow)}
	}
	return d, nil
}
