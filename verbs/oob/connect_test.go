package oob

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

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// socketPair makes the two ends of a TCP connection.
func socketPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	a := rig.Must(net.Dial("tcp", l.Addr().String()))(t)
	b := rig.Must(l.Accept())(t)
	rig.CloseAll(t, a, b)
	return a, b
}

// exchanged is the result of Exchange in a goroutine of its own.
type exchanged struct {
	info QPInfo
	err  error
}

func goExchange(ctx context.Context, sock net.Conn, in QPInfo) <-chan exchanged {
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
		"pipe": func(t *testing.T) (net.Conn, net.Conn) { a, b := net.Pipe(); rig.CloseAll(t, a, b); return a, b },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			ctx := rig.Context(t)
			inA := QPInfo{QPN: 1, PSN: 2, Settings: map[string]string{"size": "8"}}
			inB := QPInfo{QPN: 3, PSN: 4, Settings: map[string]string{"size": "8"}}
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
	ctx := rig.Context(t)
	other := goExchange(ctx, b, QPInfo{QPN: 3, Settings: map[string]string{"size": "1024", "iters": "5"}})
	got, err := Exchange(ctx, a, QPInfo{Settings: map[string]string{"size": "4096", "iters": "5"}})
	if _, ok := errors.AsType[*SettingsError](err); !ok || !strings.Contains(err.Error(), `size is "4096" here, "1024" there`) || got.QPN != 3 {
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
		"nonsense":      {"GET / HTTP/1.1\r\n", verbs.ErrInvalid},
		"endless line":  {strings.Repeat("x", maxInfoLine+1), nil},
		"binary":        {"\x00\xff\n", verbs.ErrInvalid},
		"empty line":    {"\n", verbs.ErrInvalid},
		"line and more": {infoHead + " x\n", verbs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := socketPair(t)
			if _, err := io.WriteString(b, c.sends); err != nil {
				t.Fatal(err)
			}
			if err := b.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_, err := Exchange(rig.Context(t), a, QPInfo{})
			if err == nil || c.target != nil && !errors.Is(err, c.target) {
				t.Errorf("got %v, want %v", err, c.target)
			}
		})
	}
	a, _ := socketPair(t)
	_, err := Exchange(rig.Context(t), a, QPInfo{QPN: 1 << 24})
	rig.WantErr(t, err, verbs.ErrInvalid, "24 bits")
}

// A silent peer holds nobody beyond the context, and the socket is usable again.
func TestExchangeTimeout(t *testing.T) {
	for name, pair := range map[string]func(*testing.T) (net.Conn, net.Conn){
		"tcp":  socketPair,
		"pipe": func(t *testing.T) (net.Conn, net.Conn) { a, b := net.Pipe(); rig.CloseAll(t, a, b); return a, b },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := Exchange(ctx, a, QPInfo{})
			rig.WantErr(t, err, context.DeadlineExceeded)
			go func() { _, _ = io.WriteString(b, "x") }()
			if _, err := io.ReadFull(a, make([]byte, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

// connected is the result of Config.Connect in a goroutine of its own.
type connected struct {
	conn *verbs.Conn
	info QPInfo
	err  error
}

func goConnect(ctx context.Context, o Config, sock net.Conn, qp *verbs.QP) <-chan connected {
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
func TestConnectManaged(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	mr := rig.Must(b.PD.RegMR(make([]byte, 8), verbs.LocalWrite|verbs.RemoteWrite))(t)
	src := rig.Must(a.PD.RegMR([]byte("12345678"), 0))(t)
	sa, sb := socketPair(t)
	ctx := rig.Context(t)
	settings := map[string]string{"size": "8"}
	active := goConnect(ctx, Config{Active: true, Settings: settings}, sa, a.QP)
	passive := goConnect(ctx, Config{Region: mr.Region(), Settings: settings}, sb, b.QP)
	ra, rb := <-active, <-passive
	if ra.err != nil || rb.err != nil || ra.conn == nil || rb.conn == nil {
		t.Fatalf("got %v, %v", ra.err, rb.err)
	}
	if ra.info.Region != mr.Region() || ra.info.QPN != b.QP.Num() || rb.info.QPN != a.QP.Num() || rb.info.Region != (verbs.Region{}) {
		t.Errorf("got %+v and %+v", ra.info, rb.info)
	}
	if _, err := a.QP.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 8)}, Remote: ra.info.Region.RemoteAddr}}); err != nil {
		t.Fatal(err)
	}
	rig.WaitOne(ctx, t, a.CQ)
	if string(mr.Bytes()) != "12345678" {
		t.Errorf("got %q", mr.Bytes())
	}
	if err := errors.Join(ra.conn.Disconnect(ctx), mr.Close(), src.Close()); err != nil {
		t.Error(err)
	}
	rig.WantErr(t, dev.Close(), verbs.ErrBusy, "2 protection domains, 2 completion queues") // the listener is gone
}

func TestRoles(t *testing.T) {
	for _, active := range []bool{true, false} {
		dev := rig.MemDevice(t)
		a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
		sa, sb := socketPair(t)
		ctx := rig.Context(t)
		ca, cb := goConnect(ctx, Config{Active: active}, sa, a.QP), goConnect(ctx, Config{Active: active}, sb, b.QP)
		for _, r := range []connected{<-ca, <-cb} {
			if r.err == nil || !strings.Contains(r.err.Error(), "exactly one side") {
				t.Errorf("Active on both %v: got %v", active, r.err)
			}
		}
	}
}

// A stranger who dials the passive side's listener is refused, and the peer is
// connected all the same.
func TestStranger(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b, stranger := rig.NewSide(t, dev), rig.NewSide(t, dev), rig.NewSide(t, dev)
	sa, sb := socketPair(t)
	ctx := rig.Context(t)
	passive := goConnect(ctx, Config{}, sb, b.QP)
	local := rig.Must(LocalQPInfo(a.QP))(t)
	remote := rig.Must(Exchange(ctx, sa, local))(t)
	_, err := verbs.Dial(ctx, stranger.QP, remote.Addr, verbs.ConnParam{PrivateData: []byte("let me in")})
	if _, ok := errors.AsType[*verbs.RejectedError](err); !ok {
		t.Errorf("the stranger got %v", err)
	}
	conn, err := Config{Active: true}.dial(ctx, a.QP, local, remote)
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
func TestFailureIsShared(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	sa, sb := socketPair(t)
	ctx := rig.Context(t)
	bad := Config{Active: true, Param: verbs.ConnParam{RetryCount: 99}}
	active, passive := goConnect(ctx, bad, sa, a.QP), goConnect(ctx, Config{}, sb, b.QP)
	rig.WantErr(t, (<-active).err, verbs.ErrInvalid, "RetryCount is 99")
	if r := <-passive; r.err == nil || !strings.Contains(r.err.Error(), "the peer failed: connect: invalid argument: RetryCount is 99") {
		t.Errorf("got %v", r.err)
	}
}

func TestPeerGone(t *testing.T) {
	dev := rig.MemDevice(t)
	b := rig.NewSide(t, dev)
	sa, sb := socketPair(t)
	ctx := rig.Context(t)
	passive := goConnect(ctx, Config{}, sb, b.QP)
	_ = rig.Must(Exchange(ctx, sa, QPInfo{}))(t)
	if err := sa.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	rig.WantErr(t, (<-passive).err, io.ErrUnexpectedEOF)
}

func TestTimeout(t *testing.T) {
	dev := rig.MemDevice(t)
	b := rig.NewSide(t, dev)
	sa, sb := socketPair(t)
	ctx, cancel := context.WithCancel(rig.Context(t))
	passive := goConnect(ctx, Config{}, sb, b.QP)
	_ = rig.Must(Exchange(ctx, sa, QPInfo{}))(t)
	cancel() // while the passive side waits for the dial
	rig.WantErr(t, (<-passive).err, context.Canceled)
}

func TestMismatch(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	sa, sb := socketPair(t)
	ctx := rig.Context(t)
	active := goConnect(ctx, Config{Active: true, Settings: map[string]string{"mtu": "1024"}}, sa, a.QP)
	passive := goConnect(ctx, Config{Settings: map[string]string{"mtu": "4096"}}, sb, b.QP)
	for _, r := range []connected{<-active, <-passive} {
		if _, ok := errors.AsType[*SettingsError](r.err); !ok || r.conn != nil {
			t.Errorf("got %v", r.err)
		}
	}
}

// On a device that is driven by hand both queue pairs go through the steps of
// ibv_rc_pingpong with each other's numbers.
// parity: V60
func TestConnectByHand(t *testing.T) {
	a, b := rawQP(t, verbs.RC), rawQP(t, verbs.RC)
	sa, sb := socketPair(t)
	ctx := rig.Context(t)
	if err := (Config{Access: verbs.RemoteRead}).InitQP(b); err != nil || b.State() != verbs.StateInit {
		t.Fatalf("InitQP: %v, %v", err, b.State())
	}
	param := verbs.ConnParam{ResponderResources: 4, InitiatorDepth: -1, RetryCount: 3, RNRRetry: -1}
	active, passive := goConnect(ctx, Config{Active: true, Param: param}, sa, a), goConnect(ctx, Config{}, sb, b)
	ra, rb := <-active, <-passive
	if ra.err != nil || rb.err != nil || ra.conn != nil || rb.conn != nil {
		t.Fatalf("got %+v, %+v", ra, rb)
	}
	if a.State() != verbs.StateRTS || b.State() != verbs.StateRTS {
		t.Errorf("states %v, %v", a.State(), b.State())
	}
	stepsA, stepsB := rig.FakeQPOf(t, a).Steps(), rig.FakeQPOf(t, b).Steps()
	if len(stepsA) != 3 || len(stepsB) != 3 {
		t.Fatalf("%d and %d steps, want 3", len(stepsA), len(stepsB))
	}
	if stepsA[0].Access != verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic || stepsB[0].Access != verbs.RemoteRead {
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
func rawQP(t *testing.T, typ verbs.QPType) *verbs.QP {
	t.Helper()
	dev, f := rig.NewFake(t)
	f.Attr.QPTypes = []verbs.QPType{verbs.RC, verbs.UC, verbs.UD, verbs.XRCSend}
	f.Attr.Ports = []verbs.PortAttr{
		{Num: 1, State: verbs.PortActive, LID: 7, GIDs: [][16]byte{{15: 9}}},
		{Num: 2, State: verbs.PortActive, LID: 8, GIDs: [][16]byte{{15: 10}}, GIDTable: []verbs.GIDEntry{{Index: 0, GID: [16]byte{15: 10}}, {Index: 4, GID: [16]byte{15: 11}}}},
	}
	pd := rig.Must(dev.AllocPD())(t)
	cq := rig.Must(dev.CreateCQ(4))(t)
	qp := rig.Must(pd.CreateQP(verbs.QPConfig{SendCQ: cq, Type: typ}))(t)
	rig.CloseAll(t, qp, cq, pd, dev)
	return qp
}

func TestRefusals(t *testing.T) {
	ctx := rig.Context(t)
	sa, _ := socketPair(t)
	_, _, err := Config{}.Connect(ctx, sa, nil)
	rig.WantErr(t, err, verbs.ErrInvalid, "queue pair is nil")
	_, _, err = Config{}.Connect(ctx, sa, rawQP(t, verbs.XRCSend))
	rig.WantErr(t, err, errors.ErrUnsupported, "type XRC_SEND")
	_, _, err = Config{Path: verbs.AHAttr{PortNum: 3}}.Connect(ctx, sa, rawQP(t, verbs.UD))
	rig.WantErr(t, err, verbs.ErrInvalid, "Path.PortNum is 3", "2 ports")
	_, _, err = Config{Path: verbs.AHAttr{PortNum: 2, SGIDIndex: 1, HasSGIDIndex: true}}.Connect(ctx, sa, rawQP(t, verbs.UC))
	rig.WantErr(t, err, verbs.ErrInvalid, "no GID with index 1", "[0 4]")
	_, _, err = Config{Path: verbs.AHAttr{HasSGIDIndex: true}}.Connect(ctx, sa, rawQP(t, verbs.UC))
	rig.WantErr(t, err, verbs.ErrInvalid, "no table")
	rig.WantErr(t, Config{}.DriveToRTS(nil, QPInfo{}, QPInfo{}), verbs.ErrInvalid, "queue pair is nil")

	dev := rig.MemDevice(t)
	s := rig.NewSide(t, dev)
	if err := (Config{}).InitQP(s.QP); err != nil { // nothing to do there
		t.Error(err)
	}
	pa, pb := net.Pipe()
	rig.CloseAll(t, pa, pb)
	_, _, err = Config{}.Connect(ctx, pa, s.QP)
	rig.WantErr(t, err, verbs.ErrInvalid, "set Config.Listen")
	expired, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = Config{Listen: netip.MustParseAddrPort("127.0.0.1:0")}.Connect(expired, pa, s.QP)
	rig.WantErr(t, err, context.Canceled)
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
