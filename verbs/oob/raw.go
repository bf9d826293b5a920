package oob

import (
	"context"
	"fmt"
	"net"
	"slices"

	"cinnabar/verbs"
)

// The attributes that ibv_rc_pingpong uses, which are the defaults of Config.
const (
	rawMTU         = 3  // 1024 bytes
	rawMinRNRTimer = 12 // 0.64 ms
	rawTimeout     = 14 // 67 ms
	rawRetryCount  = 7
	rawRDAtomic    = 1
	rawPort        = 1
)

// exchangeAndDrive moves the queue pair to RTS with the numbers of the exchange, and
// returns when the peer's queue pair is in RTS too.
func (o Config) exchangeAndDrive(ctx context.Context, sock net.Conn, qp *verbs.QP, local QPInfo) (QPInfo, error) {
	if !drivable(qp.Type()) {
		return QPInfo{}, verbs.Unsupported("connect out of band", "queue pairs of type %v; use RC, UC or UD", qp.Type())
	}
	remote, err := Exchange(ctx, sock, local)
	if err != nil {
		return remote, err
	}
	return remote, together(ctx, sock, func(context.Context) error { return o.DriveToRTS(qp, local, remote) })
}

func drivable(t verbs.QPType) bool { return t == verbs.RC || t == verbs.UC || t == verbs.UD }

// DriveToRTS moves qp from RESET or INIT to RTS, for programs with an exchange of
// their own. local is the result of [Config.LocalQPInfo], and remote is that of the peer;
// DriveToRTS uses LID, QPN, PSN and GID of them. It needs a device with CapRawState.
func (o Config) DriveToRTS(qp *verbs.QP, local, remote QPInfo) error {
	if err := checkQP(qp); err != nil {
		return err
	}
	if qp.State() == verbs.StateReset {
		if err := qp.Modify(o.initAttr(qp)); err != nil {
			return err
		}
	}
	if err := qp.Modify(o.rtrAttr(qp.Type(), local, remote)); err != nil {
		return err
	}
	return qp.Modify(o.rtsAttr(qp.Type(), local))
}

// InitQP moves qp from RESET to INIT on devices with CapRawState, so that receives can be
// posted before [Config.Connect]. On other devices it does nothing, because their queue
// pairs take receives at once.
func (o Config) InitQP(qp *verbs.QP) error {
	attr, err := qp.PD().Device().Query()
	if err != nil || !attr.Caps.Has(verbs.CapRawState) {
		return err
	}
	return qp.Modify(o.initAttr(qp))
}

// AHAttr returns the attributes of an address handle for datagrams to the peer.
func (o Config) AHAttr(remote QPInfo) verbs.AHAttr {
	a := o.Path
	a.GID, a.DLID, a.PortNum = remote.GID, remote.LID, o.port()
	return a
}

func (o Config) port() uint8 { return max(o.Path.PortNum, rawPort) }

// ownGID is the GID of the port that the path names, or that the device chooses.
func (o Config) ownGID(p *verbs.PortAttr) (gid [16]byte, err error) {
	if !o.Path.HasSGIDIndex {
		if len(p.GIDs) > 0 {
			gid = p.GIDs[0]
		}
		return gid, nil
	}
	i := slices.IndexFunc(p.GIDTable, func(e verbs.GIDEntry) bool { return e.Index == int(o.Path.SGIDIndex) })
	if i < 0 {
		return gid, verbs.Errorf("connect out of band", verbs.ErrInvalid, "port %d has no GID with index %d; it has %s", p.Num, o.Path.SGIDIndex, indexes(p.GIDTable))
	}
	return p.GIDTable[i].GID, nil
}

// indexes returns the indexes of the entries of a GID table as text.
func indexes(table []verbs.GIDEntry) string {
	if len(table) == 0 {
		return "no table"
	}
	list := make([]int, len(table))
	for i, e := range table {
		list[i] = e.Index
	}
	return fmt.Sprint(list)
}

// access returns the peer's rights: o.Access, or the default of the queue pair's type.
func (o Config) access(t verbs.QPType) verbs.Access {
	switch {
	case o.Access != 0:
		return o.Access
	case t == verbs.UC:
		return verbs.RemoteWrite
	}
	return verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic
}

// qkey returns the key of a UD queue pair: o.QKey, or the key that it has, or the default.
func (o Config) qkey(qp *verbs.QP) uint32 {
	if o.QKey != 0 {
		return o.QKey
	}
	if a, _ := qp.Query(); a.Mask&verbs.AttrQKey != 0 && a.QKey != 0 {
		return a.QKey
	}
	return verbs.DefaultQKey
}

func (o Config) initAttr(qp *verbs.QP) verbs.QPAttr {
	a := verbs.QPAttr{Mask: verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort, State: verbs.StateInit, Port: o.port()}
	if qp.Type() == verbs.UD {
		a.Mask, a.QKey = a.Mask|verbs.AttrQKey, o.qkey(qp)
	} else {
		a.Mask, a.Access = a.Mask|verbs.AttrAccess, o.access(qp.Type())
	}
	return a
}

func (o Config) rtrAttr(t verbs.QPType, local, remote QPInfo) verbs.QPAttr {
	if t == verbs.UD {
		return verbs.QPAttr{Mask: verbs.AttrState | verbs.AttrQKey, State: verbs.StateRTR, QKey: local.QKey}
	}
	a := verbs.QPAttr{
		Mask:  verbs.AttrState | verbs.AttrAccess | verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN,
		State: verbs.StateRTR, Access: o.access(t), PathMTU: o.MTU, DestQPN: remote.QPN, RQPSN: remote.PSN, AH: o.AHAttr(remote),
	}
	if a.PathMTU == 0 {
		a.PathMTU = rawMTU
	}
	if t == verbs.RC {
		a.Mask |= verbs.AttrMaxDestRDAtomic | verbs.AttrMinRNRTimer
		a.MaxDestRDAtomic, a.MinRNRTimer = rdAtomic(o.Param.ResponderResources), rawMinRNRTimer
	}
	return a
}

func (o Config) rtsAttr(t verbs.QPType, local QPInfo) verbs.QPAttr {
	a := verbs.QPAttr{Mask: verbs.AttrState | verbs.AttrSQPSN, State: verbs.StateRTS, SQPSN: local.PSN}
	if t == verbs.RC {
		a.Mask |= verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRDAtomic
		a.Timeout, a.MaxRDAtomic = rawTimeout, rdAtomic(o.Param.InitiatorDepth)
		a.RetryCount, a.RNRRetry = retries(o.Param.RetryCount, rawRetryCount), retries(o.Param.RNRRetry, verbs.MaxRNRRetry)
	}
	return a
}

// rdAtomic returns the attribute for n outstanding reads and atomics of ConnParam.
func rdAtomic(n int) uint8 {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return rawRDAtomic
	}
	return uint8(min(n, 255))
}

// retries returns the attribute for a retry count n of ConnParam; 0: def.
func retries(n int, def uint8) uint8 {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return def
	}
	return uint8(min(n, 7))
}
