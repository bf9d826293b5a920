package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest"
)

func fill(b []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
}

// TestOpcodes runs every operation once over each kind of connection.
func TestOpcodes(t *testing.T) {
	for name, cfg := range map[string]iwarp.Config{
		"default":   {},
		"nocrc":     {NoCRC: true},
		"confirm":   {ConfirmWrites: true},
		"revision1": {Revision: 1},
		"smallFPDU": {MaxULPDU: 128},
	} {
		t.Run(name, func(t *testing.T) { testOpcodes(t, cfg) })
	}
}

func testOpcodes(t *testing.T, cfg iwarp.Config) {
	a, b := newPair(t, cfg, cfg)
	const size = 1 << 20
	src, dst := a.region(t, size), b.region(t, size)
	fill(src.Bytes(), 1)

	b.recv(t, verbs.RecvWR{ID: 7, SGL: []verbs.SGE{dst.SGE(0, 1000)}})
	a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 600), src.SGE(1000, 37)}})
	a.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
	if wc := b.want(t, 7, verbs.WCRecv, verbs.StatusSuccess); wc.Len != 637 {
		t.Errorf("received %d bytes, want 637", wc.Len)
	}
	if want := append(append([]byte{}, src.Bytes()[:600]...), src.Bytes()[1000:1037]...); !bytes.Equal(dst.Bytes()[:637], want) {
		t.Error("send: data differs")
	}

	b.recv(t, verbs.RecvWR{ID: 8})
	a.send(t, verbs.SendWR{ID: 2, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
		verbs.SendWR{ID: 3, Op: verbs.OpWriteImm, Flags: verbs.Signaled, Imm: 0x01020304, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()})
	a.want(t, 3, verbs.WCWrite, verbs.StatusSuccess)
	if wc := b.want(t, 8, verbs.WCRecvRDMAImm, verbs.StatusSuccess); !wc.HasImm || wc.Imm != 0x01020304 || wc.Len != size {
		t.Errorf("write with immediate: %+v", wc)
	}
	if !bytes.Equal(dst.Bytes(), src.Bytes()) {
		t.Error("write: data differs")
	}

	b.recv(t, verbs.RecvWR{ID: 9, SGL: []verbs.SGE{dst.SGE(0, 64)}})
	a.send(t, verbs.SendWR{ID: 4, Op: verbs.OpSendImm, Flags: verbs.Signaled | verbs.Inline, Imm: 5, SGL: []verbs.SGE{src.SGE(5, 64)}})
	a.want(t, 4, verbs.WCSend, verbs.StatusSuccess)
	if wc := b.want(t, 9, verbs.WCRecv, verbs.StatusSuccess); !wc.HasImm || wc.Imm != 5 || wc.Len != 64 || !bytes.Equal(dst.Bytes()[:64], src.Bytes()[5:69]) {
		t.Errorf("send with immediate: %+v", wc)
	}

	back := a.region(t, size)
	a.send(t, verbs.SendWR{ID: 5, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{back.SGE(0, 100), back.SGE(100, size-100)}, Remote: dst.Remote()})
	if wc := a.want(t, 5, verbs.WCRead, verbs.StatusSuccess); wc.Len != size || !bytes.Equal(back.Bytes(), dst.Bytes()) {
		t.Errorf("read: %+v", wc)
	}

	binary.NativeEndian.PutUint64(dst.Bytes(), 40)
	a.send(t, verbs.SendWR{ID: 6, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: []verbs.SGE{back.SGE(0, 8)}, Remote: dst.Remote(), CompareAdd: 2})
	a.want(t, 6, verbs.WCFetchAdd, verbs.StatusSuccess)
	if old, now := binary.NativeEndian.Uint64(back.Bytes()), binary.NativeEndian.Uint64(dst.Bytes()); old != 40 || now != 42 {
		t.Errorf("fetch-add: old %d now %d", old, now)
	}
	a.send(t, verbs.SendWR{ID: 7, Op: verbs.OpCompareSwap, Flags: verbs.Signaled, SGL: []verbs.SGE{back.SGE(0, 8)}, Remote: dst.Remote(), CompareAdd: 42, Swap: 99})
	a.want(t, 7, verbs.WCCompareSwap, verbs.StatusSuccess)
	if old, now := binary.NativeEndian.Uint64(back.Bytes()), binary.NativeEndian.Uint64(dst.Bytes()); old != 42 || now != 99 {
		t.Errorf("compare-swap: old %d now %d", old, now)
	}

	// The passive side's turn, and the end in order.
	a.recv(t, verbs.RecvWR{ID: 10, SGL: []verbs.SGE{back.SGE(0, 16)}})
	b.send(t, verbs.SendWR{ID: 8, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{dst.SGE(0, 16)}})
	b.want(t, 8, verbs.WCSend, verbs.StatusSuccess)
	a.want(t, 10, verbs.WCRecv, verbs.StatusSuccess)
	if err := a.conn.Disconnect(testContext(t)); err != nil {
		t.Error("disconnect:", err)
	}
	<-b.conn.Done()
}

// TestReadsBothWaysAtDepthOne: each side's scattered reads wait for answers that
// the other side may only give between its own requests.
func TestReadsBothWaysAtDepthOne(t *testing.T) {
	const piece, pieces, reads = 5000, 4, 20
	a, b := newSide(t, iwarp.Config{}, nil), newSide(t, iwarp.Config{}, nil)
	one := verbs.ConnParam{InitiatorDepth: 1, ResponderResources: 1}
	connect(t, a, b, one, one)
	ends := []*side{a, b}
	var own, sink [2]*verbs.MR
	for i, s := range ends {
		own[i], sink[i] = s.region(t, piece*pieces), s.region(t, piece*pieces)
		fill(own[i].Bytes(), uint64(i))
	}
	for i, s := range ends {
		var sgl []verbs.SGE
		for k := range pieces {
			sgl = append(sgl, sink[i].SGE(k*piece, piece))
		}
		for id := range uint64(reads) {
			s.send(t, verbs.SendWR{ID: id, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: sgl, Remote: own[1-i].Remote()})
		}
	}
	for i, s := range ends {
		for id := range uint64(reads) {
			s.want(t, id, verbs.WCRead, verbs.StatusSuccess)
		}
		if !bytes.Equal(sink[i].Bytes(), own[1-i].Bytes()) {
			t.Errorf("side %d: data differs", i)
		}
	}
}

// TestForgottenRequest: a request that nobody answers ends with its device.
func TestForgottenRequest(t *testing.T) {
	ctx := testContext(t)
	a := newSide(t, iwarp.Config{}, nil)
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	dialled := make(chan error, 1)
	go func() {
		_, err := verbs.Dial(ctx, a.qp, l.Addr(), verbs.ConnParam{})
		dialled <- err
	}()
	if _, err := l.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-dialled; err == nil || ctx.Err() != nil {
		t.Errorf("dial: %v, want the end of the connection", err)
	}
}

// TestGUIDIsStable opens a device twice: it has one GUID, and a device of another name has another.
func TestGUIDIsStable(t *testing.T) {
	guid := func(name string) string {
		t.Helper()
		a, err := newSide(t, iwarp.Config{Name: name}, nil).dev.Query()
		if err != nil {
			t.Fatal(err)
		}
		if a.NodeGUID != a.SysImageGUID {
			t.Errorf("GUIDs %v and %v of one device", a.NodeGUID, a.SysImageGUID)
		}
		return a.NodeGUID.String()
	}
	first, again, other := guid("a"), guid("a"), guid("b")
	if first != again || first == other {
		t.Errorf("GUIDs %s and %s of one device, and %s of another", first, again, other)
	}
}

// TestErrorSaysThingsOnce wants the operation and the address once in the errors of connecting and listening.
func TestErrorSaysThingsOnce(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(taken.Addr().String())
	_, err = verbs.Listen(s.dev, addr)
	if got, want := fmt.Sprint(err), "listen "+addr.String()+": bind: "; !strings.HasPrefix(got, want) {
		t.Errorf("listen: got %q, want %q first", got, want)
	}
	if err := taken.Close(); err != nil { // now nothing listens there
		t.Fatal(err)
	}
	_, err = verbs.Dial(t.Context(), s.qp, addr, verbs.ConnParam{})
	if got, want := fmt.Sprint(err), "dial "+addr.String()+": connect: "; !strings.HasPrefix(got, want) || strings.Count(got, "dial") != 1 {
		t.Errorf("dial: got %q, want %q first", got, want)
	}
}

func openForSuite(t *testing.T, o verbstest.Options) *verbs.Device {
	t.Helper()
	return openSuite(t, o, iwarp.Config{})
}

// openSuite opens a device with the settings of cfg and of the suite.
func openSuite(t *testing.T, o verbstest.Options, cfg iwarp.Config) *verbs.Device {
	t.Helper()
	cfg.ConfirmWrites, cfg.NoImmediates, cfg.NoAtomics, cfg.LockMemory = o.ConfirmWrites, o.NoImmediates, o.NoAtomics, o.LockMemory
	cfg.DeniedLimit = -1 // the suite guesses keys from one host
	dev, err := iwarp.Open(cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return dev
}

// TestConformance runs the suite that every device must pass.
func TestConformance(t *testing.T) { verbstest.TestDevice(t, openForSuite) }

// TestListenerOfProgram listens on a listener that the program has opened: the first time at its address, and not elsewhere.
func TestListenerOfProgram(t *testing.T) {
	given, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := iwarp.Open(iwarp.Config{Listener: given})
	if err != nil {
		t.Fatal(err)
	}
	at := given.Addr().(*net.TCPAddr).AddrPort()
	other, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil || other.Addr() == at {
		t.Errorf("another address: %v, %v", other.Addr(), err)
	}
	l, err := verbs.Listen(dev, at)
	if err != nil || l.Addr() != at {
		t.Fatalf("%v, want %v", err, at)
	}
	if _, err := verbs.Listen(dev, at); err == nil {
		t.Error("two listeners have one socket")
	}
	if err := errors.Join(l.Close(), other.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	if _, err := given.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the socket is open after its listener: %v", err)
	}
}
