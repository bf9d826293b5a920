package verbs

import (
	"slices"
)

// Defaults of a configuration. A smaller limit of the device takes precedence.
const (
	defaultDepth = 128
	defaultSGE   = 4
)

// QPConfig is the configuration of a queue pair.
type QPConfig struct {
	Type   QPType // 0: RC
	SendCQ *CQ    // where completions of the send queue go; required
	RecvCQ *CQ    // where completions of the receive queue go; nil: SendCQ
	SRQ    *SRQ   // where receives come from; nil: a receive queue of its own

	MaxSendWR  int // depth of the send queue; 0: 128, negative: none
	MaxRecvWR  int // depth of the receive queue; 0: 128, negative: none; not used with SRQ
	MaxSendSGE int // gather entries of one send work request; 0: 4, negative: none
	MaxRecvSGE int // scatter entries of one receive; 0: 4, negative: none; not used with SRQ
	MaxInline  int // bytes that an Inline request can carry; 0: none

	SignalAll bool // every send work request makes a completion, as if Signaled
}

// orDefault resolves a number of a configuration: 0 means def or the device's
// limit if that is less, a negative one means 0.
func orDefault(v, def, limit int) int {
	switch {
	case v < 0:
		return 0
	case v > 0:
		return v
	case limit > 0:
		return min(def, limit)
	}
	return def
}

// WithDefaults returns cfg with the values that [PD.CreateQP] substitutes for zeros on a device with these
// attributes. A program uses them to choose the depth of completion queues that it creates before the queue pair.
func (cfg QPConfig) WithDefaults(attr *DeviceAttr) QPConfig {
	if cfg.Type == 0 {
		cfg.Type = RC
	}
	if cfg.RecvCQ == nil {
		cfg.RecvCQ = cfg.SendCQ
	}
	cfg.MaxSendWR = orDefault(cfg.MaxSendWR, defaultDepth, attr.MaxQPWR)
	cfg.MaxSendSGE = orDefault(cfg.MaxSendSGE, defaultSGE, attr.MaxSGE)
	cfg.MaxRecvWR = orDefault(cfg.MaxRecvWR, defaultDepth, attr.MaxQPWR)
	cfg.MaxRecvSGE = orDefault(cfg.MaxRecvSGE, defaultSGE, attr.MaxSGE)
	if cfg.SRQ != nil {
		cfg.MaxRecvWR, cfg.MaxRecvSGE = 0, 0
	}
	return cfg
}

// check refuses a configuration over the limits of the device, naming the limit.
func (cfg *QPConfig) check(op string, dev *Device, attr *DeviceAttr) error {
	if cfg.SendCQ == nil {
		return Errorf(op, ErrInvalid, "SendCQ is nil; every queue pair needs a completion queue")
	}
	if cfg.SendCQ.dev != dev || cfg.RecvCQ.dev != dev || cfg.SRQ != nil && cfg.SRQ.pd.dev != dev {
		return Errorf(op, ErrInvalid, "its queues belong to another device")
	}
	if len(attr.QPTypes) > 0 && !slices.Contains(attr.QPTypes, cfg.Type) {
		return Unsupported(op, "device %s has no queue pairs of type %v, only %v", attr.Name, cfg.Type, attr.QPTypes)
	}
	for _, l := range []struct {
		what          string
		v, min, limit int
		attr          string
	}{
		{"MaxSendWR", cfg.MaxSendWR, 0, attr.MaxQPWR, "MaxQPWR"},
		{"MaxRecvWR", cfg.MaxRecvWR, 0, attr.MaxQPWR, "MaxQPWR"},
		{"MaxSendSGE", cfg.MaxSendSGE, 0, attr.MaxSGE, "MaxSGE"},
		{"MaxRecvSGE", cfg.MaxRecvSGE, 0, attr.MaxSGE, "MaxSGE"},
	} {
		if err := checkLimit(op, l.what, l.v, l.min, l.limit, l.attr); err != nil {
			return err
		}
	}
	// Unlike the others, an inline limit of 0 means that there is none to be had.
	if cfg.MaxInline < 0 || cfg.MaxInline > attr.MaxInline {
		return Errorf(op, ErrInvalid, "MaxInline is %d, outside 0 to the device's limit of %d (DeviceAttr.MaxInline)", cfg.MaxInline, attr.MaxInline)
	}
	return nil
}

// QP is a queue pair. All methods are safe for concurrent use; requests that
// are posted concurrently go in either order.
type QP struct {
	pd  *PD
	drv QPDriver
	cfg QPConfig // as asked for, with defaults filled in
	dependents
}

// CreateQP makes a queue pair. A limit of the device that cfg exceeds is named
// in the error; a type that the device lacks matches [errors.ErrUnsupported].
func (pd *PD) CreateQP(cfg QPConfig) (*QP, error) {
	const op = "create queue pair"
	attr, err := pd.dev.limits()
	if err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults(attr)
	if err := cfg.check(op, pd.dev, attr); err != nil {
		return nil, err
	}
	qp := &QP{pd: pd, cfg: cfg}
	if err := qp.join(op); err != nil {
		return nil, err
	}
	qp.drv, err = pd.drv.CreateQP(qp.init())
	if err != nil {
		qp.part()
		return nil, err
	}
	return qp, nil
}

// init translates the configuration for the driver.
func (qp *QP) init() QPInit {
	cfg := &qp.cfg
	init := QPInit{
		Type: cfg.Type, SendCQ: cfg.SendCQ.drv, RecvCQ: cfg.RecvCQ.drv, SignalAll: cfg.SignalAll, Context: qp,
		Cap: QPCap{
			MaxSendWR: cfg.MaxSendWR, MaxRecvWR: cfg.MaxRecvWR,
			MaxSendSGE: cfg.MaxSendSGE, MaxRecvSGE: cfg.MaxRecvSGE, MaxInline: cfg.MaxInline,
		},
	}
	if cfg.SRQ != nil { // a nil *SRQ must not become a non-nil interface
		init.SRQ = cfg.SRQ.drv
	}
	return init
}

// membership is one object that a queue pair keeps open.
type membership struct {
	deps *dependents
	name string
}

// members lists the objects that the queue pair keeps open. A completion queue
// that serves both directions is listed, and counted, once.
func (qp *QP) members() []membership {
	m := []membership{{&qp.pd.dependents, "protection domain"}, {&qp.cfg.SendCQ.dependents, "completion queue"}}
	if qp.cfg.RecvCQ != qp.cfg.SendCQ {
		m = append(m, membership{&qp.cfg.RecvCQ.dependents, "completion queue"})
	}
	if qp.cfg.SRQ != nil {
		m = append(m, membership{&qp.cfg.SRQ.dependents, "shared receive queue"})
	}
	return m
}

// join counts the queue pair at all its members, or at none.
func (qp *QP) join(op string) error {
	members := qp.members()
	for i, m := range members {
		if err := m.deps.addDependent(childQP, op, m.name); err != nil {
			for _, joined := range members[:i] {
				joined.deps.removeDependent(childQP)
			}
			return err
		}
	}
	return nil
}

// part undoes join.
func (qp *QP) part() {
	for _, m := range qp.members() {
		m.deps.removeDependent(childQP)
	}
}

// Num returns the queue pair number, which is unique on the device.
func (qp *QP) Num() uint32 { return qp.drv.Num() }

// Type returns the transport service of the queue pair.
func (qp *QP) Type() QPType { return qp.cfg.Type }

// PD returns the protection domain of the queue pair.
func (qp *QP) PD() *PD { return qp.pd }

// PostSend queues wrs in order and returns how many were accepted; the error, if
// any, is about wrs[n]. It neither blocks nor allocates, except for memory windows
// (see the package documentation). The slice and the lists
// in it belong to the caller again when it returns; the memory that they name is
// in use until the completion (with Inline: only during the call). A request that
// makes no completion is done when a later one of the queue completes.
func (qp *QP) PostSend(wrs []SendWR) (n int, err error) { return qp.drv.PostSend(wrs) }

// PostRecv posts receives in order and returns how many were accepted; the
// error, if any, is about wrs[n]. It neither blocks nor allocates.
func (qp *QP) PostRecv(wrs []RecvWR) (n int, err error) { return qp.drv.PostRecv(wrs) }

// GivePages gives the pages of regions back to the system, and reports whether the system has taken any. The regions stay registered.
// The bytes of these pages are 0 afterwards, and each page takes memory again when it is written. A page that lies only in part in a
// region keeps its bytes. The memory of the regions must lie in Go's heap or come from [PD.AllocMR], and no posted send or read may use it.
// Only the peer of qp may write to it, because written and received count the bytes of no other peer.
//
// written is the number of bytes that the peer has written by RDMA writes since the connection was made, as far as the program knows.
// received is the number of bytes of the messages that the program has received from the peer. If the peer has written or sent other bytes,
// or has begun to, GivePages returns false and changes nothing, because those bytes would be lost. GivePages also returns false on
// devices that pin memory, such as all devices in hardware; on systems other than Linux; after the end of the connection; and if a region
// belongs to another protection domain than the queue pair.
func (qp *QP) GivePages(written, received uint64, regions ...*MR) bool {
	d, ok := qp.drv.(QPPageGiver)
	if !ok {
		return false
	}
	memory := make([][]byte, 0, len(regions))
	for i, mr := range regions {
		reg := mr.reg.Load()
		if reg.pd != qp.pd { // another device may have pinned its pages
			return false
		}
		if slices.Contains(regions[:i], mr) { // the mutex of its registration is already held
			continue
		}
		reg.mu.Lock() // until the pages are given, because Close unmaps them
		defer reg.mu.Unlock()
		if reg.closed.Load() {
			return false
		}
		memory = append(memory, reg.buf)
	}
	return d.GivePages(written, received, memory)
}

// Modify changes the attributes that attr.Mask names. A step that the state
// machine of the device's transport does not allow is refused with [ErrInvalid]
// and changes nothing.
func (qp *QP) Modify(attr QPAttr) error { return qp.drv.Modify(attr) }

// State returns the state that the queue pair is in.
func (qp *QP) State() QPState {
	a, _ := qp.drv.Query()
	return a.State
}

// Query returns the attributes, and the configuration with the limits that the
// device really granted.
func (qp *QP) Query() (QPAttr, QPConfig) {
	attr, init := qp.drv.Query()
	cfg := qp.cfg
	cfg.Type, cfg.SignalAll = init.Type, init.SignalAll
	cfg.MaxSendWR, cfg.MaxRecvWR = init.Cap.MaxSendWR, init.Cap.MaxRecvWR
	cfg.MaxSendSGE, cfg.MaxRecvSGE = init.Cap.MaxSendSGE, init.Cap.MaxRecvSGE
	cfg.MaxInline = init.Cap.MaxInline
	return attr, cfg
}

// Close destroys the queue pair and its connection. When it returns, the device
// touches none of its memory, and completions of it that were not polled are
// gone: poll them first (ibv_destroy_qp(3) does the same). A second Close does nothing.
func (qp *QP) Close() error {
	return qp.closeUnlessBusy("close queue pair", func() error {
		if err := qp.drv.Close(); err != nil {
			return err
		}
		qp.part()
		return nil
	})
}
