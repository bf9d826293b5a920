package ofitcp

import (
	"bytes"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

func FuzzHeader(f *testing.F) {
	for _, b := range golden(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		n := parseHeader(&m, b)
		if n > len(b) || n > maxHeader || n > 0 && n < baseLen {
			t.Fatalf("header of %d bytes in %d", n, len(b))
		}
		if n <= 0 {
			return
		}
		if m.niov > 0 { // pieces are encoded as they were read
			enc := appendRMA(nil, m.op, 0, m.iov[:m.niov], m.payload)
			var again message
			if k := parseHeader(&again, enc); k != len(enc) || again.iov != m.iov || again.payload != m.payload {
				t.Fatalf("%+v encoded and read again is %+v", m, again)
			}
			if m.op == opWrite && m.total() != m.payload {
				t.Fatalf("write of %d bytes to %d", m.payload, m.total())
			}
		}
	})
}

func FuzzCM(f *testing.F) {
	for _, b := range golden(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, req, err := readRequest(bytes.NewReader(b))
		if err != nil {
			if req != nil && len(nackOf(req)) != len(req) {
				t.Fatal("a refusal of another size than the request")
			}
			return
		}
		if m.port == 0 || m.probe != probeLittle {
			t.Fatalf("accepted %+v", m)
		}
		enc := appendCM(nil, m)
		again, _, err := readRequest(bytes.NewReader(enc))
		if err != nil || again != m {
			t.Fatalf("%+v encoded and read again is %+v, %v", m, again, err)
		}
	})
}

func FuzzHandle(f *testing.F) {
	f.Add(golden(f)["handle"])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseHandle(b)
		if err == nil && (r.access < na.ReadOnly || r.access > na.ReadWrite) {
			t.Fatalf("%+v", r)
		}
	})
}

func FuzzAddressStrings(f *testing.F) {
	for _, s := range []string{"ofi+tcp", "ofi+tcp://127.0.0.1:1", "tcp://[::1]:80", "ofi+tcp://lo/127.0.0.1:0", "ofi+tcp://Some-host.test.:80", "ofi+tcp;ofi_rxm://1.2.3.4:5", "uid://1#na+sm://2#ofi+tcp://1.2.3.4:5"} {
		f.Add(s)
	}
	self := appendAddrIP("127.0.0.1")
	f.Fuzz(func(t *testing.T, s string) {
		if host, a, err := parseTarget(s, scheme, self); err == nil && host == "" {
			_, again, err := parseTarget(formatAddr(a), scheme, self)
			if err != nil || again != a {
				t.Fatalf("%q is %v, whose canonical form is %v, %v", s, a, again, err)
			}
		} else if err == nil {
			canonical := (&ofiaddr.Names{Scheme: scheme}).New(host, a.Port()).String()
			name, again, err := parseTarget(canonical, scheme, self)
			if err != nil || name != host || again != a {
				t.Fatalf("%q is host %q and %v, and %q is %q and %v, %v", s, host, a, canonical, name, again, err)
			}
		}
		_, _ = parseSpec(s) // what it makes of it is checked when an interface is looked for
	})
}

// FuzzStream sends arbitrary bytes over a live connection, in two pieces, to an endpoint that has operations of all
// kinds under way with that peer. Whatever they are, the endpoint lives, its other peers are served, and every operation
// completes once when the connection has gone.
// parity: H61
func FuzzStream(f *testing.F) {
	g := golden(f)
	var seed []byte
	for _, name := range []string{"request", "response", "read-rsp", "write", "read-req", "ack"} {
		f.Add(g[name], uint16(10))
		seed = append(seed, g[name]...)
	}
	f.Add(seed, uint16(100))
	f.Add(append(appendReadRsp(nil, 40_000), make([]byte, 40_000)...), uint16(20_000))
	f.Add(rawExpected(1, make([]byte, 40_000)), uint16(20_000))
	e := openEcho(f, Config{KeepAlive: -1, SendTimeout: -1, DialTimeout: 50 * time.Millisecond})
	buf := make([]byte, 64)
	m, err := e.Register(buf, na.ReadWrite)
	if err != nil {
		f.Fatal(err)
	}
	// The only key, so that the seeds' key 4 and 6 find memory.
	for _, key := range []uint64{4, 6} {
		s := e.mem.shard(key)
		s.mu.Lock()
		if s.byKey == nil {
			s.byKey = make(map[uint64]*memory)
		}
		s.byKey[key] = m.(*memory)
		s.mu.Unlock()
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) { fuzzStream(t, e, b, int(cut)) })
}

// fuzzPeers counts the peers of fuzzStream.
var fuzzPeers atomic.Uint32

func fuzzStream(t *testing.T, e *Endpoint, b []byte, cut int) {
	host := net.IPv4(127, 0, 0, 1)
	if runtime.GOOS == "linux" { // where each has its own ports: one host's would soon all wait for late segments
		host[15] += byte(fuzzPeers.Add(1) % 250)
	}
	r := newRawOn(t, host)
	c, answer := r.dial(e, 1)
	if answer.typ != cmResponse {
		return // the endpoint is dialing this port, for an answer to a request that an earlier peer sent from it
	}
	to := r.lookup(e)
	var ops []*call
	for tag := range uint32(3) {
		op := newCall()
		e.RecvExpected(&op.op, to, tag, make([]byte, 50_000*int(tag)))
		ops = append(ops, op)
	}
	get, put := newCall(), newCall()
	e.Get(&get.op, to, []na.Fragment{{Remote: &remote{size: 16, access: na.ReadOnly}, Local: make([]byte, 16)}})
	e.Put(&put.op, to, []na.Fragment{{Remote: &remote{size: 16, access: na.WriteOnly}, Local: make([]byte, 16)}})
	ops = append(ops, get, put)
	cut = min(cut, len(b))
	_, _ = c.Write(b[:cut]) // the endpoint may have closed already
	_, _ = c.Write(b[cut:])
	_ = c.CloseWrite()
	c.closed()
	for _, op := range ops {
		_ = op.park(t) // that it completes is what matters
	}
}

// TestFuzzStreamPieces runs the seeds of FuzzStream cut at every place.
func TestFuzzStreamPieces(t *testing.T) {
	e := openEcho(t, Config{})
	g := golden(t)
	b := append(bytes.Clone(g["request"]), g["response"]...)
	for cut := range b {
		fuzzStream(t, e, b, cut)
	}
}

// TestGarbage: bytes on the port that are no connection request cost their connection only, within bounded time.
// parity: H61
func TestGarbage(t *testing.T) {
	e := openEcho(t, Config{})
	for i := range 50 {
		c, err := net.Dial("tcp4", e.self.String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = c.Write(random(100*i, uint64(i))) // may be cut off
		_ = c.Close()
	}
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	r.ping(c, 1)
}
