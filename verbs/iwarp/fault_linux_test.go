package iwarp_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// mapping maps a file of one page, whose contents truncate takes away.
func mapping(t *testing.T) (mem []byte, truncate func()) {
	t.Helper()
	mem, shorten := mappingOf(t, 4096)
	return mem, func() { shorten(0) }
}

// mappingOf maps a file of size bytes, which shorten cuts to n bytes.
func mappingOf(t *testing.T, size int) (mem []byte, shorten func(n int64)) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "region"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err = unix.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	return mem, func(n int64) {
		if err := f.Truncate(n); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTruncatedMappingFailsItsConnection registers a mapped file and truncates it. A peer's or the program's own access is
// then a fault (SIGBUS), which must end the connection and not the process.
func TestTruncatedMappingFailsItsConnection(t *testing.T) {
	type access struct {
		name string
		do   func(t *testing.T, s *side, p *peer, mr *verbs.MR)
	}
	own := func(wr verbs.SendWR) func(*testing.T, *side, *peer, *verbs.MR) {
		return func(t *testing.T, s *side, p *peer, mr *verbs.MR) {
			wr.SGL = []verbs.SGE{mr.SGE(0, 64)}
			s.send(t, wr)
		}
	}
	for _, crc := range []bool{true, false} {
		for _, a := range []access{
			{"write of 8 bytes", func(_ *testing.T, _ *side, p *peer, mr *verbs.MR) { p.send(writeTo(mr.Remote()), make([]byte, 8)) }},
			{"write of 2 bytes", func(_ *testing.T, _ *side, p *peer, mr *verbs.MR) { p.send(writeTo(mr.Remote()), make([]byte, 2)) }},
			{"write of 1000 bytes", func(_ *testing.T, _ *side, p *peer, mr *verbs.MR) { p.send(writeTo(mr.Remote()), make([]byte, 1000)) }},
			{"read", func(_ *testing.T, _ *side, p *peer, mr *verbs.MR) { p.readRequest(mr.Remote(), 100) }},
			{"atomic", func(_ *testing.T, _ *side, p *peer, mr *verbs.MR) {
				p.send(p.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, rdmap.FetchAdd(1, mr.RKey(), mr.Remote().Addr, 1)))
			}},
			{"receive", func(_ *testing.T, _ *side, p *peer, _ *verbs.MR) { p.send(p.untagged(rdmap.OpSend), sixteen) }},
			{"own write", own(verbs.SendWR{ID: 50, Op: verbs.OpWrite, Flags: verbs.Signaled})},
			{"own inline send", own(verbs.SendWR{ID: 50, Op: verbs.OpSend, Flags: verbs.Signaled | verbs.Inline})},
		} {
			t.Run(a.name+map[bool]string{true: "", false: ", no CRC"}[crc], func(t *testing.T) {
				s := newSide(t, iwarp.Config{NoCRC: true}, nil)
				other := s.another(t)
				req := request()
				req.CRC = crc
				q := acceptRaw(t, other, req, verbs.ConnParam{})
				p := acceptRaw(t, s, req, verbs.ConnParam{})
				mem, truncate := mapping(t)
				mr, err := s.pd.RegMR(mem, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := mr.Close(); err != nil {
						t.Error(err)
					}
				}()
				p.open()
				for i := range 16 {
					s.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(16*i, 16)}})
				}
				p.barrier()
				truncate()
				a.do(t, s, p, mr)
				<-s.conn.Done()
				if err := s.conn.Err(); err == nil {
					t.Error("the connection has no cause")
				}
				q.open()
				q.barrier() // the other connection is served
			})
		}
	}
}

// TestTruncatedMappingOfHeldMessage delivers a message that was held to memory that is not there any more.
func TestTruncatedMappingOfHeldMessage(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mem, truncate := mapping(t)
	mr, err := s.pd.RegMR(mem, verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	p.send(p.untagged(rdmap.OpSend), sixteen)
	s.holds(t, 1)
	truncate()
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 16)}})
	<-s.conn.Done()
	s.want(t, 1, verbs.WCRecv, verbs.StatusLocProtErr)
}

// In TestRunTLSFault the sink of a read inside TLS is a mapped file that has lost its second page. The call that reads guesses fails when TLS has decrypted
// bytes to the first page. No guessed bytes are left in that page, also if a guess crosses its end.
func TestRunTLSFault(t *testing.T) {
	const page = 4096
	for _, segment := range []int{1024, 1000} {
		cfg := secure(t)
		g := newRunSide(t, cfg, verbs.LocalWrite)
		g.connectTLS(t, cfg.TLS)
		mem, shorten := mappingOf(t, 2*page)
		sink, err := g.pd.RegMR(mem, verbs.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, sink.Close)
		to := g.p.asked(t, g.side, sink)
		shorten(page)
		for off := 0; off < len(mem); off += segment {
			h := to
			h.TO, h.Last = to.TO+uint64(off), off+segment >= len(mem)
			g.add(h, bytes.Repeat([]byte{1}, min(segment, len(mem)-off)))
		}
		g.record(t)
		<-g.conn.Done()
		if err := g.conn.Err(); !errors.As(err, new(*hostmem.FaultError)) {
			t.Errorf("segments of %d bytes: the connection has ended with %v, want a fault", segment, err)
		}
		if zero(mem[:segment]) {
			t.Errorf("segments of %d bytes: the first one has not come, so no guess was made", segment)
		}
		if !zero(mem[segment:page]) {
			t.Errorf("segments of %d bytes: guessed bytes are left in the sink", segment)
		}
	}
}
