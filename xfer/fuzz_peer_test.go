package xfer

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"cinnabar/verbs"
)

// script is a fuzzer's input, from which the state fuzzers draw decisions. Behind its end all draws are 0.
type script struct{ b []byte }

func (s *script) done() bool { return len(s.b) == 0 }

func (s *script) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	v := s.b[0]
	s.b = s.b[1:]
	return v
}

// below draws a number from 0 to n-1; n is at most 256.
func (s *script) below(n int) int { return int(s.byte()) % n }

// number draws a number of up to 64 bits, small ones and those near powers of two above all.
func (s *script) number() uint64 {
	switch shift := s.byte(); {
	case shift < 128:
		return uint64(s.byte()) << (shift % 64)
	case shift < 192:
		return 1<<(shift%64) - uint64(s.below(4))
	default:
		return uint64(s.below(8))
	}
}

// bytes draws up to most bytes.
func (s *script) bytes(most int) []byte {
	n := min(s.below(256)*most/255, len(s.b))
	v := s.b[:n]
	s.b = s.b[n:]
	return v
}

// pick draws one of values.
func pick[T any](s *script, values ...T) T { return values[s.below(len(values))] }

// fuzzPeer is one end of a connection that follows a script. It waits for nothing.
type fuzzPeer struct {
	t    testing.TB
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mr   *verbs.MR
	conn *verbs.Conn
	got  func(data []byte, wc *verbs.WC) // called for each receive, after which it is posted again
}

// Layout of the memory of a fuzzPeer: receives, the message that is sent, data.
const (
	fuzzReceives = 32
	fuzzMessage  = fuzzReceives * maxMessage
	fuzzData     = fuzzMessage + 2*maxMessage
	fuzzDataLen  = 64 << 10
)

func newFuzzPeer(t testing.TB, dev *verbs.Device) *fuzzPeer {
	t.Helper()
	p := &fuzzPeer{t: t, dev: dev, got: func([]byte, *verbs.WC) {}}
	p.pd = must(dev.AllocPD())(t)
	p.cq = must(dev.CreateCQ(1024))(t)
	p.qp = must(p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq, MaxSendWR: 256, MaxRecvWR: fuzzReceives}))(t)
	p.mr = must(p.pd.AllocMR(fuzzData+fuzzDataLen, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead))(t)
	for i := range fuzzReceives {
		p.receive(i)
	}
	return p
}

func (p *fuzzPeer) receive(slot int) {
	wr := verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{p.mr.SGE(slot*maxMessage, maxMessage)}}
	_, _ = p.qp.PostRecv([]verbs.RecvWR{wr}) // fails when the connection is over
}

func (p *fuzzPeer) close() {
	p.t.Helper()
	if err := errors.Join(p.qp.Close(), p.mr.Close(), p.cq.Close(), p.pd.Close()); err != nil {
		p.t.Error(err)
	}
}

// poll takes all completions that there are.
func (p *fuzzPeer) poll() {
	var wcs [32]verbs.WC
	for {
		n, err := p.cq.Poll(wcs[:])
		if n == 0 || err != nil {
			return
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.Err() != nil || !wc.Op.IsRecv() {
				continue
			}
			var data []byte
			if wc.Op == verbs.WCRecv {
				data = append(data, p.mr.Bytes()[int(wc.ID)*maxMessage:][:wc.Len]...)
			}
			p.receive(int(wc.ID))
			p.got(data, wc)
		}
	}
}

// post posts a request with data from the place of messages, or of data if it is long. Failures do not matter: the
// connection may be over.
func (p *fuzzPeer) post(wr verbs.SendWR, data []byte) {
	at := fuzzMessage
	if len(data) > 2*maxMessage {
		at = fuzzData
	}
	if n := copy(p.mr.Bytes()[at:], data); n > 0 {
		wr.SGL = []verbs.SGE{p.mr.SGE(at, n)}
	}
	wr.Flags = verbs.Signaled
	_, _ = p.qp.PostSend([]verbs.SendWR{wr})
}

func (p *fuzzPeer) send(data []byte) { p.post(verbs.SendWR{Op: verbs.OpSend}, data) }

// hostile does one thing that no peer does, or not now: to the peer's memory at remote, or to any.
func (p *fuzzPeer) hostile(s *script, remote verbs.RemoteAddr) {
	to := remote
	if s.below(4) == 0 {
		to = verbs.RemoteAddr{Addr: remote.Addr + s.number(), RKey: remote.RKey + uint32(s.number())}
	}
	switch s.below(10) {
	case 0:
		p.send(s.bytes(maxMessage))
	case 1:
		p.send(s.fast())
	case 2:
		p.send(s.basic())
	case 3:
		p.post(verbs.SendWR{Op: verbs.OpWrite, Remote: to}, make([]byte, s.below(256)*s.below(256)))
	case 4:
		p.post(verbs.SendWR{Op: verbs.OpWriteImm, Remote: to, Imm: uint32(s.number())}, make([]byte, s.below(256)*s.below(256)))
	case 5:
		p.post(verbs.SendWR{Op: verbs.OpSendImm, Imm: uint32(s.number())}, s.fast())
	case 6:
		p.post(verbs.SendWR{Op: verbs.OpSendInvalidate, InvKey: to.RKey}, s.fast())
	case 7:
		wr := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, Remote: to, SGL: []verbs.SGE{p.mr.SGE(fuzzData, s.below(256))}}
		_, _ = p.qp.PostSend([]verbs.SendWR{wr})
	case 8:
		p.send(make([]byte, 2*maxMessage)) // longer than any receive
	case 9:
		p.post(verbs.SendWR{Op: verbs.OpWriteImm, Remote: to, Imm: uint32(s.below(20))}, s.bytes(300)) // a name
	}
}

// fast draws a message of the fast protocol, valid or nearly.
func (s *script) fast() []byte {
	m := fastMessage{kind: uint16(s.below(9)), length: uint32(s.number()), number: s.number(), word: uint32(s.number()), count: uint32(s.number()), tail: s.bytes(256)}
	b := appendFast(nil, m)
	if s.below(4) == 0 {
		binary.LittleEndian.PutUint32(b[4:], uint32(s.number()))
	}
	return b
}

// basic draws a message of the basic protocol, valid or nearly, or the size that stands for immediate data.
func (s *script) basic() []byte {
	if s.below(2) == 0 {
		return binary.BigEndian.AppendUint32(nil, uint32(s.number()))
	}
	return appendBasic(nil, basicMessage{id: int32(s.below(6)), remote: verbs.RemoteAddr{Addr: s.number(), RKey: uint32(s.number())},
		why: errorMessage{code: Code(s.number()), text: string(s.bytes(maxErrorMessage - errorMessageLen))}})
}

// openFiles counts the descriptors of the process, where the system shows them.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// metered counts the bytes of memory that are registered on a device.
type metered struct {
	verbs.DeviceDriver
	now, most atomic.Int64
}

type meteredPD struct {
	verbs.PDDriver
	meter *metered
}

type meteredMR struct {
	verbs.MRDriver
	meter *metered
	n     int64
}

func (d *metered) AllocPD() (verbs.PDDriver, error) {
	pd, err := d.DeviceDriver.AllocPD()
	return meteredPD{pd, d}, err
}

func (p meteredPD) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	mr, err := p.PDDriver.RegMR(r, access)
	if err != nil {
		return nil, err
	}
	n := p.meter.now.Add(int64(len(r.Bytes)))
	for most := p.meter.most.Load(); n > most && !p.meter.most.CompareAndSwap(most, n); most = p.meter.most.Load() {
	}
	return meteredMR{mr, p.meter, int64(len(r.Bytes))}, nil
}

func (m meteredMR) Close() error {
	m.meter.now.Add(-m.n)
	return m.MRDriver.Close()
}
