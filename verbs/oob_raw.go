package verbs

import (
	"context"
	"fmt"
	"net"
	"slices"

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

// exchangeAndDrive drives the queue pair from where it is to RTS with what the
// exchange says, and returns when the peer's is there too.
func (o OOB) exchangeAndDrive(ctx context.Context, sock net.Conn, qp *QP, local Info) (Info, error) {
	if !drivable(qp.cfg.Type) {
		return Info{}, driver.Unsupported("connect out of band", "queue pairs of type %v; use RC, UC or UD", qp.cfg.Type)
	}
	remote, err := Exchange(ctx, sock, local)
	if err != nil {
		return remote, err
	}
	return remote, together(ctx, sock, func(context.Context) error { return o.DriveToRTS(qp, local, remote) })
}

func drivable(t QPType) bool { return t == RC || t == UC || t == UD }

// DriveToRTS moves qp from RESET or INIT to RTS, for programs with an exchange of
// their own. local is of [OOB.LocalInfo], remote the same of the peer, of which
// both need LID, QPN, PSN and GID. Only devices with CapRawState can.
func (o OOB) DriveToRTS(qp *QP, local, remote Info) error {
	if err := checkQP("connect out of band", qp); err != nil {
		return err
	}
	if qp.State() == StateReset {
		if err := qp.Modify(o.initAttr(qp)); err != nil {
			return err
		}
	}
	if err := qp.Modify(o.rtrAttr(qp.cfg.Type, local, remote)); err != nil {
		return err
	}
	return qp.Modify(o.rtsAttr(qp.cfg.Type, local))
}

// InitQP moves qp from RESET to INIT, so that receives can be posted before
// [OOB.Connect] on devices that are driven by hand. On others it does nothing.
func (o OOB) InitQP(qp *QP) error {
	attr, err := qp.pd.dev.limits()
	if err != nil || !attr.Caps.Has(CapRawState) {
		return err
	}
	return qp.Modify(o.initAttr(qp))
}

// AHAttr describes the way to the peer, for an address handle of datagrams.
func (o OOB) AHAttr(remote Info) AHAttr {
	a := o.Path
	a.GID, a.DLID, a.PortNum = remote.GID, remote.LID, o.port()
	return a
}

func (o OOB) port() uint8 { return max(o.Path.PortNum, rawPort) }

// ownGID is the GID of the port that the path names, or that the device chooses.
func (o OOB) ownGID(p *PortAttr) (gid [16]byte, err error) {
	if !o.Path.HasSGIDIndex {
		if len(p.GIDs) > 0 {
			gid = p.GIDs[0]
		}
		return gid, nil
	}
	i := slices.IndexFunc(p.GIDTable, func(e GIDEntry) bool { return e.Index == int(o.Path.SGIDIndex) })
	if i < 0 {
		return gid, errorf("connect out of band", ErrInvalid, "port %d has no GID with index %d; it has %s", p.Num, o.Path.SGIDIndex, indexes(p.GIDTable))
	}
	return p.GIDTable[i].GID, nil
}

// indexes lists the places of a table that are set.
func indexes(table []GIDEntry) string {
	if len(table) == 0 {
		return "no table"
	}
	list := make([]int, len(table))
	for i, e := range table {
		list[i] = e.Index
	}
	return fmt.Sprint(list)
}

// access resolves the rights of the peer.
func (o OOB) access(t QPType) Access {
	switch {
	case o.Access != 0:
		return o.Access
	case t == UC:
		return RemoteWrite
	}
	return RemoteRead | RemoteWrite | RemoteAtomic
}

// qkey resolves the key of a UD queue pair.
func (o OOB) qkey(qp *QP) uint32 {
	if o.QKey != 0 {
		return o.QKey
	}
	if a, _ := qp.drv.Query(); a.Mask&AttrQKey != 0 && a.QKey != 0 {
		return a.QKey
	}
	return DefaultQKey
}

func (o OOB) initAttr(qp *QP) QPAttr {
	a := QPAttr{Mask: AttrState | AttrPKeyIndex | AttrPort, State: StateInit, Port: o.port()}
	if qp.cfg.Type == UD {
		a.Mask, a.QKey = a.Mask|AttrQKey, o.qkey(qp)
	} else {
		a.Mask, a.Access = a.Mask|AttrAccess, o.access(qp.cfg.Type)
	}
	return a
}

func (o OOB) rtrAttr(t QPType, local, remote Info) QPAttr {
	if t == UD {
		return QPAttr{Mask: AttrState | AttrQKey, State: StateRTR, QKey: local.QKey}
	}
	a := QPAttr{
		Mask:  AttrState | AttrAccess | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN,
		State: StateRTR, Access: o.access(t), PathMTU: o.MTU, DestQPN: remote.QPN, RQPSN: remote.PSN, AH: o.AHAttr(remote),
	}
	if a.PathMTU == 0 {
		a.PathMTU = rawMTU
	}
	if t == RC {
		a.Mask |= AttrMaxDestRDAtomic | AttrMinRNRTimer
		a.MaxDestRDAtomic, a.MinRNRTimer = rdAtomic(o.Param.ResponderResources), rawMinRNRTimer
	}
	return a
}

func (o OOB) rtsAttr(t QPType, local Info) QPAttr {
	a := QPAttr{Mask: AttrState | AttrSQPSN, State: StateRTS, SQPSN: local.PSN}
	if t == RC {
		a.Mask |= AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRDAtomic
		a.Timeout, a.MaxRDAtomic = rawTimeout, rdAtomic(o.Param.InitiatorDepth)
		a.RetryCount, a.RNRRetry = retries(o.Param.RetryCount, rawRetryCount), retries(o.Param.RNRRetry, MaxRNRRetry)
	}
	return a
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
