//go:build linux

package uverbs

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

//go:embed testdata/layout.txt
var goldenFile string

// golden returns the bytes of testdata/layout.txt by their names.
func golden(t *testing.T) map[string][]byte {
	t.Helper()
	if native.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the layouts are those of a little-endian processor")
	}
	m := map[string][]byte{}
	for line := range strings.Lines(goldenFile) {
		if name, digits, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			m[name] = get[[]byte](t)(hex.DecodeString(digits))
		}
	}
	return m
}

func same(t *testing.T, name string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\ngot  %x\nwant %x", name, got, want)
	}
}

// pipeContext is a context whose commands go into a pipe. All responses are zeros.
func pipeContext(t *testing.T) (c *Context, next func() []byte) {
	t.Helper()
	var p [2]int
	must(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() {
		must(t, unix.Close(p[0]))
		must(t, unix.Close(p[1]))
	})
	return &Context{name: "pipe", fd: p[1], asyncFD: p[0], prov: rxe{}, coreSupport: coreOptionalAccess}, func() []byte {
		var b [512]byte
		n := get[int](t)(unix.Read(p[0], b[:]))
		if n >= bodyAt && native.Uint16(b[6:]) > 0 {
			clear(b[headerSize:bodyAt]) // the address of the response
		}
		return b[:n]
	}
}

var goldenPath = Path{
	DGID:      [16]byte{0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f},
	FlowLabel: 0x21222324, DLID: 0x2526, SGIDIndex: 0x27, HopLimit: 0x28, TrafficClass: 0x29, SL: 0x2a, PathBits: 0x2b, Global: true, Port: 0x2c,
}

const (
	goldenID     = 0x1112131415161718
	goldenHandle = 0x41424344
)

func TestCommandLayout(t *testing.T) {
	want := golden(t)
	c, next := pipeContext(t)
	pd := &PD{ctx: c, handle: goldenHandle}
	cq := &CQ{ctx: c, handle: goldenHandle, ring: &rxeCQ{}}
	srq := &SRQ{ctx: c, handle: goldenHandle}
	qp := &QP{ctx: c, handle: goldenHandle}
	attr := goldenQPAttr
	attr.Mask = 0x51525354
	var bell doorbell
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"alloc_pd", func() error { _, err := c.AllocPD(); return err }},
		{"query_port", func() error { _, err := c.QueryPort(1); return err }},
		{"reg_mr", func() error {
			_, err := pd.RegMR(goldenID, 0x3132333435363738, 0x2122232425262728, 0x51525354)
			return err
		}},
		{"alloc_mw", func() error { _, err := pd.AllocMW(2); return err }},
		{"create_cq", func() error { _, err := c.CreateCQ(0x21222324, goldenID, nil); return err }},
		{"resize_cq", func() error { return cq.Resize(0x21222324) }},
		{"destroy_cq", cq.Close},
		{"create_srq", func() error { _, err := pd.CreateSRQ(goldenID, 0x21222324, 0x31323334); return err }},
		{"modify_srq", func() error { return srq.SetLimit(0x21222324) }},
		{"query_srq", func() error { _, err := srq.Limit(); return err }},
		{"create_qp", func() error {
			_, err := pd.CreateQP(QPInit{
				SendCQ: &CQ{handle: 0x51}, RecvCQ: &CQ{handle: 0x52}, SRQ: &SRQ{handle: 0x53}, ID: goldenID, Type: qptRC, SignalAll: true,
				MaxSendWR: 0x61, MaxRecvWR: 0x62, MaxSendSGE: 0x63, MaxRecvSGE: 0x64, MaxInline: 0x65,
			})
			return err
		}},
		{"modify_qp", func() error { return qp.Modify(&attr) }},
		{"query_qp", func() error { return newRequest(cmdQueryQP, 128).u32(goldenHandle, 0x51525354).send(c.fd) }},
		{"create_ah", func() error { return createAHRequest(pd, &goldenPath).send(c.fd) }},
		{"post_send", func() error { bell.initSend(c.fd, goldenHandle); return bell.ring(rawPayload + 1) }},
		{"notify", func() error { bell = doorbell{}; bell.initNotify(c.fd, goldenHandle); return bell.notify(true) }},
	} {
		must(t, step.run())
		same(t, step.name, next(), want[step.name])
	}
}

var goldenQPAttr = QPAttr{
	Path: goldenPath, State: 3, CurState: 2, Access: 0x65, QKey: 0x61, RQPSN: 0x62, SQPSN: 0x63, DestQPN: 0x64, PathMTU: 4, PKeyIndex: 0x66,
	Port: 0x74, Timeout: 0x75, Retry: 0x76, RNRRetry: 0x77, MinRNR: 0x73, RdAtomic: 0x71, DestRdAtomic: 0x72, SQDNotify: 1,
}

func TestResponseLayout(t *testing.T) {
	want := golden(t)
	attr := goldenQPAttr
	attr.SQDNotify = 0 // not in responses
	if got := parseQPAttr(want["qp_resp"]); got != attr {
		t.Errorf("queue pair:\ngot  %+v\nwant %+v", got, attr)
	}
	device := DeviceAttr{
		Firmware: "1.2.3", NodeGUID: goldenID, SysGUID: 0x2122232425262728, MaxMRSize: 0x31, PageSizeCap: 0x32, CapFlags: 0x81000038,
		Vendor: 0x33, Part: 0x34, HW: 0x35, MaxQP: 0x36, MaxQPWR: 0x37, MaxSGE: 0x39, MaxSGERd: 0x3a, MaxCQ: 0x3b, MaxCQE: 0x3c,
		MaxMR: 0x3d, MaxPD: 0x3e, MaxRdAtomic: 0x3f, MaxInitRdAtomic: 0x40, MaxSRQ: 0x43, MaxSRQWR: 0x44, MaxSRQSGE: 0x45,
		MaxAH: 0x42, MaxMW: 0x41, AtomicCap: 1, Ports: 2,
	}
	if got := parseDeviceAttr(want["device_resp"], rxe{}); got != device {
		t.Errorf("device:\ngot  %+v\nwant %+v", got, device)
	}
	port := PortAttr{State: 4, MaxMTU: 5, ActiveMTU: 3, MaxMsg: 0x11, GIDs: 0x12, LID: 0x13, SMLID: 0x14, LinkLayer: 2}
	if got := parsePortAttr(want["port_resp"]); got != port {
		t.Errorf("port:\ngot  %+v\nwant %+v", got, port)
	}
}

func TestIoctlLayout(t *testing.T) {
	want := golden(t)
	same(t, "ioctl", newIoctl(1, 2, 14).value(attrCoreSupport, goldenID).attr(attrDriverOut, 16, 0, 0), want["ioctl"])
}

func TestRxeCompletionLayout(t *testing.T) {
	want := golden(t)
	var got WC
	readWC(&got, want["wc"])
	if w := (WC{
		ID: goldenID, Status: 0x21, Op: 0x81, Flags: 3, Imm: 0x01020304, Len: 0x23, QPN: 0x24, SrcQP: 0x25, Vendor: 0x22, SLID: 0x26, SL: 0x27, PathBits: 0x28,
	}); got != w {
		t.Errorf("completion:\ngot  %+v\nwant %+v", got, w)
	}
	readWC(&got, want["wc_inv"])
	if w := (WC{Flags: wcWithInv, Imm: 0x01020304}); got != w {
		t.Errorf("invalidation:\ngot  %+v\nwant %+v", got, w)
	}
}

func TestRxeRequestLayout(t *testing.T) {
	want := golden(t)
	base := SendWR{ID: goldenID, Flags: 0x22, RKey: goldenHandle, Remote: 0x3132333435363738}
	write, atomic, datagram, bind, inv := base, base, base, base, base
	write.Op, write.Imm = opWriteImm, 0x01020304
	atomic.Op, atomic.CompareAdd, atomic.Swap = opCompareSwap, 0x6162636465666768, 0x7172737475767778
	datagram.Op, datagram.QPN, datagram.QKey = opSend, 0x31, 0x32
	datagram.AH = &AH{num: 0x33, av: bytes.Repeat([]byte{0xaa}, 88)}
	bind.Op = opBindMW
	bind.Bind = &Bind{MW: &MW{RKey: 0x43}, MR: &MR{LKey: 0x42}, Addr: 0x3132333435363738, Len: 0x41, RKey: 0x44, Access: 0x45}
	inv.Op, inv.Imm, inv.Remote, inv.RKey = opLocalInv, 0x01020304, 0, 0
	for name, wr := range map[string]SendWR{"wqe_write": write, "wqe_atomic": atomic, "wqe_ud": datagram, "wqe_bind": bind, "wqe_inv": inv} {
		b := bytes.Repeat([]byte{0xee}, rxeSendSize) // what an earlier request has left
		typ := uint32(qptRC)
		if wr.AH != nil {
			typ = qptUD
		}
		putRxeSend(b, &wr, typ)
		putRxeDMA(b[rxeDMAAt:], 0x51, 2)
		same(t, name, b, want[name])
	}
	b := make([]byte, rxeRecvSize+2*sgeSize)
	putRxeRecv(b, goldenID, []SGE{{Addr: 0x2122232425262728, Length: 0x10, LKey: 0x31}, {Addr: 0x41, Length: 0x20, LKey: 0x42}})
	same(t, "recv_wqe", b, want["recv_wqe"])
}

func TestRxeAVLayout(t *testing.T) {
	want := golden(t)
	p := Path{DGID: goldenPath.DGID, Port: 1, FlowLabel: 0x21222324, SGIDIndex: 0x27, HopLimit: 0x28, TrafficClass: 0x29}
	source := netip.AddrFrom16([16]byte(bytes.Repeat([]byte{0x55}, 16)))
	same(t, "av6", putRxeAV(&p, source, nil), want["av6"])
	p = Path{DGID: netip.MustParseAddr("::ffff:10.0.0.2").As16(), Port: 1}
	same(t, "av4", putRxeAV(&p, netip.MustParseAddr("::ffff:10.0.0.1"), nil), want["av4"])
}
