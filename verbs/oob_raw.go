package verbs

import (
	"context"
	"net"

	"cinnabar/verbs/driver"
)

// The attributes that ibv_rc_pingpong uses, as far as the caller has no wish.
const (
	rawMTU         = 3  // 1024 bytes
	rawMinRNRTimer = 12 // 0.64 ms
	rawTimeout     = 14 // 67 ms
	rawRetryCount  = 7
	rawRDAtomic    = 1
	rawPort        = 1
)

// connectByHand drives the queue pair from where it is to RTS with what the
// exchange says, and returns when the peer's is there too.
func (o OOB) connectByHand(ctx context.Context, sock net.Conn, qp *QP, local Info) (Info, error) {
	if qp.cfg.Type != RC {
		return Info{}, driver.Unsupported("connect out of band", "queue pairs of type %v; use RC", qp.cfg.Type)
	}
	remote, err := Exchange(ctx, sock, local)
	if err != nil {
		return remote, err
	}
	return remote, together(ctx, sock, func(context.Context) error {
		if qp.State() == StateReset {
			if err := qp.Modify(o.initAttr()); err != nil {
				return err
			}
		}
		if err := qp.Modify(o.rtrAttr(remote)); err != nil {
			return err
		}
		return qp.Modify(o.rtsAttr(local))
	})
}

// InitQP moves qp from RESET to INIT, so that receives can be posted before
// [OOB.Connect] on devices that are driven by hand. On others it does nothing.
func (o OOB) InitQP(qp *QP) error {
	attr, err := qp.pd.dev.limits()
	if err != nil || !attr.Caps.Has(CapRawState) {
		return err
	}
	return qp.Modify(o.initAttr())
}

func (o OOB) initAttr() QPAttr {
	access := o.Access
	if access == 0 {
		access = RemoteRead | RemoteWrite | RemoteAtomic
	}
	return QPAttr{
		Mask:  AttrState | AttrPKeyIndex | AttrPort | AttrAccess,
		State: StateInit, Port: rawPort, Access: access,
	}
}

func (o OOB) rtrAttr(remote Info) QPAttr {
	return QPAttr{
		Mask:  AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRDAtomic | AttrMinRNRTimer,
		State: StateRTR, PathMTU: rawMTU, DestQPN: remote.QPN, RQPSN: remote.PSN,
		MaxDestRDAtomic: rdAtomic(o.Param.ResponderResources), MinRNRTimer: rawMinRNRTimer,
		AH: AHAttr{GID: remote.GID, DLID: remote.LID, PortNum: rawPort},
	}
}

func (o OOB) rtsAttr(local Info) QPAttr {
	return QPAttr{
		Mask:  AttrState | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRDAtomic,
		State: StateRTS, Timeout: rawTimeout, SQPSN: local.PSN, MaxRDAtomic: rdAtomic(o.Param.InitiatorDepth),
		RetryCount: retries(o.Param.RetryCount, rawRetryCount), RNRRetry: retries(o.Param.RNRRetry, MaxRNRRetry),
	}
}

// rdAtomic resolves a wish for outstanding reads and atomics.
func rdAtomic(n int) uint8 {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return rawRDAtomic
	}
	return uint8(min(n, 255))
}

// retries resolves a retry count of ConnParam.
func retries(n int, def uint8) uint8 {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return def
	}
	return uint8(min(n, 7))
}
