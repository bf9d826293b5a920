package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// socketPair makes the two ends of a TCP connection.
func socketPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	a := must(net.Dial("tcp", l.Addr().String()))(t)
	b := must(l.Accept())(t)
	closeAll(t, a, b)
	return a, b
}

// exchanged is the result of Exchange in a goroutine of its own.
type exchanged struct {
	info Info
	err  error
}

func goExchange(ctx context.Context, sock net.Conn, in Info) <-chan exchanged {
	c := make(chan exchanged, 1)
	go func() {
		info, err := Exchange(ctx, sock, in)
		c <- exchanged{info, err}
	}()
	return c
}

// Both sides learn of each other, over sockets with and without buffers, and
// what comes after the line is left alone.
func TestExchange(t *testing.T) {
	for name, pair := range map[string]func(*testing.T) (net.Conn, net.Conn){
		"tcp":  socketPair,
		"pipe": func(t *testing.T) (net.Conn, net.Conn) { a, b := net.Pipe(); closeAll(t, a, b); return a, b },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			ctx := testContext(t)
			inA := Info{QPN: 1, PSN: 2, Settings: map[string]string{"size": "8"}}
			inB := Info{QPN: 3, PSN: 4, Settings: map[string]string{"size": "8"}}
			other := goExchange(ctx, b, inB)
			got, err := Exchange(ctx, a, inA)
			if err != nil || got.QPN != 3 || got.PSN != 4 {
				t.Errorf("got %+v, %v", got, err)
			}
			if r := <-other; r.err != nil || r.info.QPN != 1 {
				t.Errorf("the other side: got %+v, %v", r.info, r.err)
			}
			go func() { _, _ = io.WriteString(b, "afterwards") }()
			rest := make([]byte, len("afterwards"))
			if _, err := io.ReadFull(a, rest); err != nil || string(rest) != "afterwards" {
				t.Errorf("got %q, %v", rest, err)
			}
		})
	}
}

// The option that differs is named on both sides, with both values.
func TestExchangeMismatch(t *testing.T) {
	a, b := socketPair(t)
	ctx := testContext(t)
	other := goExchange(ctx, b, Info{QPN: 3, Settings: map[string]string{"size": "1024", "iters": "5"}})
	got, err := Exchange(ctx, a, Info{Settings: map[string]string{"size": "4096", "iters": "5"}})
	if _, ok := errors.AsType[*MismatchError](err); !ok || !strings.Contains(err.Error(), `size is "4096" here, "1024" there`) || got.QPN != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
	if r := <-other; !strings.Contains(fmt.Sprint(r.err), `size is "1024" here, "4096" there`) {
		t.Errorf("the other side: %v", r.err)
	}
}

func TestExchangeHostile(t *testing.T) {
	for name, c := range map[string]struct {
		sends  string
		target error
	}{
		"nothing":       {"", io.ErrUnexpectedEOF},
		"half a line":   {infoHead[:20], io.ErrUnexpectedEOF},
		"nonsense":      {"GET / HTTP/1.1\r\n", ErrInvalid},
		"endless line":  {strings.Repeat("x", maxInfoLine+1), nil},
		"binary":        {"\x00\xff\n", ErrInvalid},
		"empty line":    {"\n", ErrInvalid},
		"line and more": {infoHead + " x\n", ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := socketPair(t)
			if _, err := io.WriteString(b, c.sends); err != nil {
				t.Fatal(err)
			}
			if err := b.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_, err := Exchange(testContext(t), a, Info{})
			if err == nil || c.target != nil && !errors.Is(err, c.target) {
				t.Errorf("got %v, want %v", err, c.target)
			}
		})
	}
	a, _ := socketPair(t)
	_, err := Exchange(testContext(t), a, Info{QPN: 1 << 24})
	wantErr(t, err, ErrInvalid, "24 bits")
}

// A silent peer holds nobody beyond the context, and the socket is usable again.
func TestExchangeTimeout(t *testing.T) {
	for name, pair := range map[string]func(*testing.T) (net.Conn, net.Conn){
		"tcp":  socketPair,
		"pipe": func(t *testing.T) (net.Conn, net.Conn) { a, b := net.Pipe(); closeAll(t, a, b); return a, b },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := Exchange(ctx, a, Info{})
			wantErr(t, err, context.DeadlineExceeded)
			go func() { _, _ = io.WriteString(b, "x") }()
			if _, err := io.ReadFull(a, make([]byte, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

// connected is the result of OOB.Connect in a goroutine of its own.
type connected struct {
	conn *Conn
	info Info
	err  error
}

func goConnect(ctx context.Context, o OOB, sock net.Conn, qp *QP) <-chan connected {
	c := make(chan connected, 1)
	go func() {
		conn, info, err := o.Connect(ctx, sock, qp)
		c <- connected{conn, info, err}
	}()
	return c
}

// The three ways of S3 to learn the peer's address and key share the rest: here,
// the line over a plain socket.
// parity: V60
func TestOOBConnectManaged(t *testing.T) {
	dev := memDevice(t)
	a, b := newSide(t, dev), newSide(t, dev)
	mr := must(b.pd.RegMR(make([]byte, 8), LocalWrite|RemoteWrite))(t)
	src := must(a.pd.RegMR([]byte("12345678"), 0))(t)
	sa, sb := socketPair(t)
	ctx := testContext(t)
	settings := map[string]string{"size": "8"}
	active := goConnect(ctx, OOB{Active: true, Settings: settings}, sa, a.qp)
	passive := goConnect(ctx, OOB{Region: mr.Region(), Settings: settings}, sb, b.qp)
	ra, rb := <-active, <-passive
	if ra.err != nil || rb.err != nil || ra.conn == nil || rb.conn == nil {
		t.Fatalf("got %v, %v", ra.err, rb.err)
	}
	if ra.info.Region != mr.Region() || ra.info.QPN != b.qp.Num() || rb.info.QPN != a.qp.Num() || rb.info.Region != (Region{}) {
		t.Errorf("got %+v and %+v", ra.info, rb.info)
	}
	if _, err := a.qp.PostSend([]SendWR{{Op: OpWrite, Flags: Signaled, SGL: []SGE{src.SGE(0, 8)}, Remote: ra.info.Region.RemoteAddr}}); err != nil {
		t.Fatal(err)
	}
	waitOne(ctx, t, a.cq)
	if string(mr.Bytes()) != "12345678" {
		t.Errorf("got %q", mr.Bytes())
	}
	if err := errors.Join(ra.conn.Disconnect(ctx), mr.Close(), src.Close()); err != nil {
		t.Error(err)
	}
	wantErr(t, dev.Close(), ErrBusy, "2 protection domains, 2 completion queues") // the listener is gone
}

func TestOOBRoles(t *testing.T) {
	for _, active := range []bool{true, false} {
		dev := memDevice(t)
		a, b := newSide(t, dev), newSide(t, dev)
		sa, sb := socketPair(t)
		ctx := testContext(t)
		ca, cb := goConnect(ctx, OOB{Active: active}, sa, a.qp), goConnect(ctx, OOB{Active: active}, sb, b.qp)
		for _, r := range []connected{<-ca, <-cb} {
			if r.err == nil || !strings.Contains(r.err.Error(), "exactly one side") {
				t.Errorf("Active on both %v: got %v", active, r.err)
			}
		}
	}
}

// A stranger who dials the passive side's listener is refused, and the peer is
// connected all the same.
func TestOOBStranger(t *testing.T) {
	dev := memDevice(t)
	a, b, stranger := newSide(t, dev), newSide(t, dev), newSide(t, dev)
	sa, sb := socketPair(t)
	ctx := testContext(t)
	passive := goConnect(ctx, OOB{}, sb, b.qp)
	local := must(LocalInfo(a.qp))(t)
	remote := must(Exchange(ctx, sa, local))(t)
	_, err := Dial(ctx, stranger.qp, remote.Addr, ConnParam{PrivateData: []byte("let me in")})
	if _, ok := errors.AsType[*RejectedError](err); !ok {
		t.Errorf("the stranger got %v", err)
	}
	conn, err := OOB{Active: true}.dial(ctx, a.qp, local, remote)
	if err != nil {
		t.Fatal(err)
	}
	if err := together(ctx, sa, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if r := <-passive; r.err != nil || r.conn.RemoteAddr() != conn.LocalAddr() {
		t.Errorf("got %+v", r)
	}
}

// If one side fails, the other one learns why, at once.
func TestOOBFailureIsShared(t *testing.T) {
	dev := memDevice(t)
	a, b := newSide(t, dev), newSide(t, dev)
	sa, sb := socketPair(t)
	ctx := testContext(t)
	bad := OOB{Active: true, Param: ConnParam{RetryCount: 99}}
	active, passive := goConnect(ctx, bad, sa, a.qp), goConnect(ctx, OOB{}, sb, b.qp)
	wantErr(t, (<-active).err, ErrInvalid, "RetryCount is 99")
	if r := <-passive; r.err == nil || !strings.Contains(r.err.Error(), "the peer failed: connect: invalid argument: RetryCount is 99") {
		t.Errorf("got %v", r.err)
	}
}

func TestOOBPeerGone(t *testing.T) {
	dev := memDevice(t)
	b := newSide(t, dev)
	sa, sb := socketPair(t)
	ctx := testContext(t)
	passive := goConnect(ctx, OOB{}, sb, b.qp)
	_ = must(Exchange(ctx, sa, Info{}))(t)
	if err := sa.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, (<-passive).err, io.ErrUnexpectedEOF)
}

func TestOOBTimeout(t *testing.T) {
	dev := memDevice(t)
	b := newSide(t, dev)
	sa, sb := socketPair(t)
	ctx, cancel := context.WithCancel(testContext(t))
	passive := goConnect(ctx, OOB{}, sb, b.qp)
	_ = must(Exchange(ctx, sa, Info{}))(t)
	cancel() // while the passive side waits for the dial
	wantErr(t, (<-passive).err, context.Canceled)
}

func TestOOBMismatch(t *testing.T) {
	dev := memDevice(t)
	a, b := newSide(t, dev), newSide(t, dev)
	sa, sb := socketPair(t)
	ctx := testContext(t)
	active := goConnect(ctx, OOB{Active: true, Settings: map[string]string{"mtu": "1024"}}, sa, a.qp)
	passive := goConnect(ctx, OOB{Settings: map[string]string{"mtu": "4096"}}, sb, b.qp)
	for _, r := range []connected{<-active, <-passive} {
		if _, ok := errors.AsType[*MismatchError](r.err); !ok || r.conn != nil {
			t.Errorf("got %v", r.err)
		}
	}
}

// On a device that is driven by hand both queue pairs go through the steps of
// ibv_rc_pingpong with each other's numbers.
// parity: V60
func TestOOBConnectByHand(t *testing.T) {
	a, b := rawQP(t, RC), rawQP(t, RC)
	sa, sb := socketPair(t)
	ctx := testContext(t)
	if err := (OOB{Access: RemoteRead}).InitQP(b); err != nil || b.State() != StateInit {
		t.Fatalf("InitQP: %v, %v", err, b.State())
	}
	param := ConnParam{ResponderResources: 4, InitiatorDepth: -1, RetryCount: 3, RNRRetry: -1}
	active, passive := goConnect(ctx, OOB{Active: true, Param: param}, sa, a), goConnect(ctx, OOB{}, sb, b)
	ra, rb := <-active, <-passive
	if ra.err != nil || rb.err != nil || ra.conn != nil || rb.conn != nil {
		t.Fatalf("got %+v, %+v", ra, rb)
	}
	if a.State() != StateRTS || b.State() != StateRTS {
		t.Errorf("states %v, %v", a.State(), b.State())
	}
	stepsA, stepsB := a.drv.(*fakeQP).steps, b.drv.(*fakeQP).steps
	if len(stepsA) != 3 || len(stepsB) != 3 {
		t.Fatalf("%d and %d steps, want 3", len(stepsA), len(stepsB))
	}
	if stepsA[0].Access != RemoteRead|RemoteWrite|RemoteAtomic || stepsB[0].Access != RemoteRead {
		t.Errorf("access %v, %v", stepsA[0].Access, stepsB[0].Access)
	}
	rtr, rts := stepsA[1], stepsA[2]
	if rtr.DestQPN != b.Num() || rtr.RQPSN != stepsB[2].SQPSN || rtr.AH.DLID != 7 || rtr.AH.GID != [16]byte{15: 9} || rtr.MaxDestRDAtomic != 4 {
		t.Errorf("RTR: %+v", rtr)
	}
	if rts.SQPSN != stepsB[1].RQPSN || rts.MaxRDAtomic != 0 || rts.RetryCount != 3 || rts.RNRRetry != 0 {
		t.Errorf("RTS: %+v", rts)
	}
	if s := stepsB[2]; s.MaxRDAtomic != 1 || s.RetryCount != 7 || s.RNRRetry != 7 || s.Timeout != 14 {
		t.Errorf("RTS with defaults: %+v", s)
	}
}

// rawQP makes a queue pair on a device that is driven by hand.
func rawQP(t *testing.T, typ QPType) *QP {
	t.Helper()
	dev, f := newFake(t)
	f.attr.QPTypes = []QPType{RC, UC, UD, XRCSend}
	f.attr.Ports = []PortAttr{
		{Num: 1, State: PortActive, LID: 7, GIDs: [][16]byte{{15: 9}}},
		{Num: 2, State: PortActive, LID: 8, GIDs: [][16]byte{{15: 10}}, GIDTable: []GIDEntry{{Index: 0, GID: [16]byte{15: 10}}, {Index: 4, GID: [16]byte{15: 11}}}},
	}
	pd := must(dev.AllocPD())(t)
	cq := must(dev.CreateCQ(4))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq, Type: typ}))(t)
	closeAll(t, qp, cq, pd, dev)
	return qp
}

func TestOOBRefusals(t *testing.T) {
	ctx := testContext(t)
	sa, _ := socketPair(t)
	_, _, err := OOB{}.Connect(ctx, sa, nil)
	wantErr(t, err, ErrInvalid, "queue pair is nil")
	_, _, err = OOB{}.Connect(ctx, sa, rawQP(t, XRCSend))
	wantErr(t, err, errors.ErrUnsupported, "type XRC_SEND")
	_, _, err = OOB{Path: AHAttr{PortNum: 3}}.Connect(ctx, sa, rawQP(t, UD))
	wantErr(t, err, ErrInvalid, "Path.PortNum is 3", "2 ports")
	_, _, err = OOB{Path: AHAttr{PortNum: 2, SGIDIndex: 1, HasSGIDIndex: true}}.Connect(ctx, sa, rawQP(t, UC))
	wantErr(t, err, ErrInvalid, "no GID with index 1", "[0 4]")
	_, _, err = OOB{Path: AHAttr{HasSGIDIndex: true}}.Connect(ctx, sa, rawQP(t, UC))
	wantErr(t, err, ErrInvalid, "no table")
	wantErr(t, OOB{}.DriveToRTS(nil, Info{}, Info{}), ErrInvalid, "queue pair is nil")

	dev := memDevice(t)
	s := newSide(t, dev)
	if err := (OOB{}).InitQP(s.qp); err != nil { // nothing to do there
		t.Error(err)
	}
	pa, pb := net.Pipe()
	closeAll(t, pa, pb)
	_, _, err = OOB{}.Connect(ctx, pa, s.qp)
	wantErr(t, err, ErrInvalid, "set OOB.Listen")
	expired, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = OOB{Listen: netip.MustParseAddrPort("127.0.0.1:0")}.Connect(expired, pa, s.qp)
	wantErr(t, err, context.Canceled)
}

func TestReadStatus(t *testing.T) {
	for line, want := range map[string]string{
		"ready\n":                        "",
		"failed the dog ate it\n":        "the peer failed: the dog ate it",
		"failed \xff\n":                  "the peer failed: ?",
		"what\n":                         `the peer's line "what" is not understood`,
		"read":                           "unexpected EOF",
		strings.Repeat("x", 1000) + "\n": "over the limit of 512 bytes",
	} {
		err := readStatus(strings.NewReader(line))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.20q: got %v, want %q", line, err, want)
		}
	}
}
