package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestFurtherRights registers memory with each right that this device lacks: the optional one is ignored, the others are
// refused by name.
// parity: V06
func TestFurtherRights(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	mr, err := s.pd.AllocMR(64, verbs.LocalWrite|verbs.RelaxedOrdering)
	if err != nil {
		t.Errorf("%v: %v", verbs.RelaxedOrdering, err)
	} else if err := mr.Close(); err != nil {
		t.Error(err)
	}
	for _, a := range []verbs.Access{verbs.ZeroBased, verbs.OnDemand, verbs.HugeTLB, verbs.FlushGlobal, verbs.FlushPersistent} {
		mr, err := s.pd.AllocMR(64, verbs.LocalWrite|a)
		if err == nil {
			t.Errorf("%v was accepted", a)
			if err := mr.Close(); err != nil {
				t.Error(err)
			}
		} else if !strings.Contains(err.Error(), a.String()) {
			t.Errorf("%v: %v, which does not name it", a, err)
		}
	}
}

// TestProgramsStartedWhileRegistered starts processes while memory is registered and written to: no byte goes astray.
// parity: V10
func TestProgramsStartedWhileRegistered(t *testing.T) {
	const size, rounds = 64 << 10, 8
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := a.region(t, size), b.region(t, size)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		fill(src.Bytes(), uint64(i))
		cmd := exec.CommandContext(testContext(t), exe, "-test.run=^$")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		a.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			verbs.SendWR{ID: uint64(i), Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 1)}, Remote: dst.RemoteAt(0)})
		a.want(t, uint64(i), verbs.WCRead, verbs.StatusSuccess)
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Errorf("round %d: other bytes have arrived", i)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestImmediateOnTheWire reads immediate data from the socket: the number leaves in network byte order, whole, for sends
// and for writes. Read as 16 bits, 10 MiB would be 160.
// parity: V31 B21
func TestImmediateOnTheWire(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpWriteImm, verbs.OpSendImm} {
		t.Run(op.String(), func(t *testing.T) {
			s := newSide(t, iwarp.Config{}, nil)
			p := acceptRaw(t, s, request(), verbs.ConnParam{})
			p.open()
			for _, imm := range []uint32{0x01020304, 10 << 20, 9} {
				s.send(t, verbs.SendWR{ID: 1, Op: op, Flags: verbs.Signaled, Imm: imm, Remote: verbs.RemoteAddr{Addr: 0x1000, RKey: sinkSTag}})
				if op == verbs.OpWriteImm {
					p.expect(rdmap.OpWrite)
				}
				_, payload := p.expect(rdmap.OpImmediate)
				if got := payload[:4]; !bytes.Equal(got, binary.BigEndian.AppendUint32(nil, imm)) {
					t.Errorf("%#x is %x on the wire", imm, got)
				}
				if op == verbs.OpSendImm {
					p.expect(rdmap.OpSend)
				}
			}
		})
	}
}

// TestImmediateFromTheWire takes the same numbers from the socket.
// parity: V31 B21
func TestImmediateFromTheWire(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	for i, imm := range []uint32{0x01020304, 10 << 20, 9} {
		s.recv(t, verbs.RecvWR{ID: uint64(i)})
		p.send(writeTo(verbs.RemoteAddr{}), nil)
		p.send(p.untagged(rdmap.OpImmediate), append(binary.BigEndian.AppendUint32(nil, imm), 0, 0, 0, 0))
		if wc := s.want(t, uint64(i), verbs.WCRecvRDMAImm, verbs.StatusSuccess); wc.Imm != imm {
			t.Errorf("%#x became %#x", imm, wc.Imm)
		}
	}
}

// TestNotSupported refuses, by name, an opcode and a type of memory windows that the device lacks, and finds the manual's table of the
// objects that no device has.
// parity: V42
func TestNotSupported(t *testing.T) {
	a, _ := newPair(t, iwarp.Config{}, iwarp.Config{})
	const op = verbs.OpSendInvalidate + 1
	if n, err := a.qp.PostSend([]verbs.SendWR{{ID: 1, Op: op}}); n != 0 || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), op.String()) {
		t.Errorf("PostSend of %v: %d, %v; want ErrUnsupported with its name", op, n, err)
	}
	if _, err := a.pd.AllocMW(verbs.MWType1); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "type 1") {
		t.Errorf("AllocMW of type 1: %v; want ErrUnsupported with the type", err)
	}
	page, err := os.ReadFile("../../docs/verbs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Not supported\n")
	if !found {
		t.Fatal("the manual has no table")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, name := range []string{"ibv_create_counters", "ibv_create_flow", "ibv_modify_qp_rate_limit", "ibv_set_ece", "ibv_open_xrcd",
		"tag matching", "ibv_attach_mcast", "ibv_reg_dmabuf_mr", "ibv_create_cq_ex", "ibv_wr_start"} {
		if !strings.Contains(section, name) {
			t.Errorf("the manual's table lacks %s", name)
		}
	}
}
