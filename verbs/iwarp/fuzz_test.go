package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"testing"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Words by which a fuzzed stream can name the live region: they are replaced by its
// key, and by the upper six octets of its address, whose lower two are 0.
var (
	keyWord  = []byte("RKEY")
	addrWord = []byte("MEMORY")
)

// fuzzRegion is the size and the alignment of that region in bytes.
const fuzzRegion = 1 << 16

// FuzzDevice feeds a live device's passive side what comes after a valid request. The
// device does not panic nor hang, gives back once what was posted, and changes no
// memory around its region.
func FuzzDevice(f *testing.F) {
	for _, crc := range []bool{false, true} {
		for _, b := range fuzzSeeds(crc) {
			f.Add(b, crc)
		}
	}
	s := newSide(f, iwarp.Config{NoCRC: true, HoldLimit: 16 << 10, DeniedLimit: -1}, nil)
	around := make([]byte, 4*fuzzRegion)
	start := fuzzRegion + int(-hostmem.Addr(around)%fuzzRegion)
	mr, err := s.pd.RegMR(around[start:start+fuzzRegion], verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic)
	if err != nil {
		f.Fatal(err)
	}
	closeAtEnd(f, mr.Close)
	f.Fuzz(func(t *testing.T, data []byte, crc bool) {
		data = bytes.ReplaceAll(data, keyWord, binary.BigEndian.AppendUint32(nil, mr.RKey()))
		data = bytes.ReplaceAll(data, addrWord, binary.BigEndian.AppendUint64(nil, mr.Remote().Addr)[:6])
		base := runtime.NumGoroutine()
		c := &cutter{side: s, mr: mr}
		c.renew(t)
		req := request()
		req.CRC = crc
		p := acceptRaw(t, s, req, verbs.ConnParam{})
		s.send(t, verbs.SendWR{ID: 100, Op: verbs.OpRead, SGL: []verbs.SGE{mr.SGE(3072, 48)}},
			verbs.SendWR{ID: 101, Op: verbs.OpFetchAdd, SGL: []verbs.SGE{mr.SGE(3200, 8)}})
		c.posted += 2
		_, _ = p.tc.Write(data) // the device may have had enough of it before the end
		_ = p.tc.CloseWrite()
		back := c.feed(t)
		_, _ = io.Copy(io.Discard, p.tc) // a reset ends it too
		p.tc.Close()
		for ; back < c.posted; back++ {
			s.wait(t)
		}
		var wc [1]verbs.WC
		if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
			t.Errorf("a completion too many, %+v, error %v", wc[0], err)
		}
		if err := s.qp.Close(); err != nil {
			t.Error(err)
		}
		if !zero(around[:start]) || !zero(around[start+fuzzRegion:]) {
			t.Fatal("memory around the region has changed")
		}
		eventually(t, "the connection's goroutines ended", func() bool { return runtime.NumGoroutine() <= base })
	})
}

// feed posts receives for what is held until the connection is over, and returns
// how many completions came meanwhile.
func (c *cutter) feed(t testing.TB) (back int) {
	var wc [16]verbs.WC
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		select {
		case <-c.conn.Done():
			return back
		default:
		}
		n, err := c.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		back += n
		if _, err := c.qp.PostRecv([]verbs.RecvWR{{ID: 200, SGL: []verbs.SGE{c.mr.SGE(4096, 64)}}}); err == nil {
			c.posted++
		}
	}
	t.Fatal("the connection does not end")
	return back
}

// fuzzSeeds are streams of legal messages, and of illegal ones, in which the live
// region is named by words.
func fuzzSeeds(crc bool) [][]byte {
	p := &peer{crc: crc}
	key := binary.BigEndian.Uint32(keyWord)
	at := func(off uint16) uint64 {
		return binary.BigEndian.Uint64(binary.BigEndian.AppendUint16(bytes.Clone(addrWord), off))
	}
	data := bytes.Repeat([]byte{0xee}, 48)
	write := tagged(rdmap.OpWrite, key, at(8))
	atomicRequest := rdmap.AppendAtomicRequest(nil, rdmap.FetchAdd(1, key, at(64), 1))
	readRequest := rdmap.AppendReadRequest(nil, rdmap.ReadRequest{SinkSTag: 1, Size: 40, SourceSTag: key, SourceTO: at(0)})
	first := p.untagged(rdmap.OpSend)
	first.Last = false
	second := first.Advance(48)
	second.Last = true
	seeds := [][]byte{
		nil,
		p.fpdu(write, data),
		p.fpdu(first, data),
		p.fpdu(second, data[:7]),
		p.fpdu(p.untagged(rdmap.OpImmediate), make([]byte, rdmap.ImmediateLen)),
		p.fpdu(p.untagged(rdmap.OpSendInvalidate), nil),
		p.fpdu(p.untagged(rdmap.OpReadRequest), readRequest),
		p.fpdu(p.untagged(rdmap.OpAtomicRequest), atomicRequest),
		p.fpdu(p.untagged(rdmap.OpAtomicResponse), make([]byte, rdmap.AtomicResponseLen)),
		p.fpdu(tagged(rdmap.OpReadResponse, 1, 1), data),
		p.fpdu(p.untagged(rdmap.OpTerminate), rdmap.AppendTerminate(nil, rdmap.TermAccess.ForSegment(write, 48))),
		p.fpdu(ddp.Header{Version: 2}, data),
		p.fpdu(tagged(rdmap.OpWrite, 1, ^uint64(0)), data),
	}
	seeds = append(seeds, bytes.Join(seeds, nil), bytes.Repeat(p.fpdu(tagged(rdmap.OpWrite, 0, 0), nil), 100))
	var sends [][]byte
	q := &peer{crc: crc}
	for i := range 40 {
		sends = append(sends, q.fpdu(q.untagged(rdmap.OpSend), data[:16+i/20]))
	}
	return append(seeds, bytes.Join(sends, nil))
}
