//go:build linux

package rdmacore

import (
	"cinnabar/verbs"
)

// probe finds the limits that no query returns, by making queue pairs: of which types the
// device has them, and how many bytes an inline request can carry.
func (d *device) probe() {
	d.attr.QPTypes = []verbs.QPType{verbs.RC} // every device of the connection manager has RC
	pd, err := allocPD(d.ctx)
	if err != nil {
		return
	}
	defer func() { _ = deallocPD(pd) }() // it is empty
	var none channelHandle
	cq, _, err := createCQ(d.ctx, 1, 0, none)
	if err != nil {
		return
	}
	defer func() { _ = destroyCQ(cq) }()
	try := func(typ verbs.QPType, inline int) (granted int, ok bool) {
		h, _, got, err := createQP(rawQP{pd: pd, sendCQ: cq, recvCQ: cq, typ: typ,
			cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: inline}})
		if err != nil {
			return 0, false
		}
		_ = destroyQP(h) // it was never connected
		return got.MaxInline, true
	}
	if !d.iwarp() {
		for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
			if _, ok := try(typ, 0); ok {
				d.attr.QPTypes = append(d.attr.QPTypes, typ)
			}
		}
	}
	for _, n := range []int{1024, 512, 256, 128, 80, 64, 32} {
		if granted, ok := try(verbs.RC, n); ok {
			d.attr.MaxInline = max(granted, n)
			return
		}
	}
}
