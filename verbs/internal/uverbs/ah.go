//go:build linux

package uverbs

import "errors"

// AH is an address handle: the path to the receiver of a datagram.
type AH struct {
	ctx    *Context
	handle uint32
	path   Path
	// num names the handle in work requests. It is 0 on kernels that give no number, and work requests carry av there.
	num uint32
	av  []byte
}

// CreateAH makes an address handle.
func (p *PD) CreateAH(path *Path) (*AH, error) {
	r := createAHRequest(p, path)
	if err := r.send(p.ctx.fd); err != nil {
		return nil, err
	}
	a := &AH{ctx: p.ctx, handle: r.respU32(0), path: *path}
	if err := p.ctx.prov.openAH(a, r.resp[ahRespSize:]); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

const ahRespSize = 4 // struct ib_uverbs_create_ah_resp

func createAHRequest(p *PD, path *Path) *request {
	return newRequest(cmdCreateAH, ahRespSize+p.ctx.prov.sizes().ah).u64(0).u32(p.handle, 0).ahAttr(path)
}

// ahAttr appends struct ib_uverbs_ah_attr.
func (r *request) ahAttr(p *Path) *request {
	r.raw(p.DGID[:]...).u32(p.FlowLabel).raw(p.SGIDIndex, p.HopLimit, p.TrafficClass, 0)
	return r.u16(p.DLID).raw(p.SL, p.PathBits, 0, boolByte(p.Global), p.Port, 0)
}

// qpDest appends struct ib_uverbs_qp_dest.
func (r *request) qpDest(p *Path) *request {
	r.raw(p.DGID[:]...).u32(p.FlowLabel).u16(p.DLID, 0)
	return r.raw(p.SGIDIndex, p.HopLimit, p.TrafficClass, p.SL, p.PathBits, 0, boolByte(p.Global), p.Port)
}

func parseDest(b []byte) Path {
	return Path{
		DGID: [16]byte(b), FlowLabel: native.Uint32(b[16:]), DLID: native.Uint16(b[20:]),
		SGIDIndex: b[24], HopLimit: b[25], TrafficClass: b[26], SL: b[27], PathBits: b[28], Global: b[30] != 0, Port: b[31],
	}
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Close ends the address handle. It fails with EBUSY while requests use it.
func (a *AH) Close() error { return newRequest(cmdDestroyAH, 0).u32(a.handle).destroy(a.ctx.fd) }
