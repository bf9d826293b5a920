package ofitcp

import (
	"bytes"
	"net"
	"runtime"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// FuzzConnection plays scripts against a living endpoint: connections of one or two ports with and without identities,
// messages of all kinds, damaged or cut anywhere, operations of the endpoint in between, and ends at any moment. With
// every script, the endpoint lives and serves an innocent peer, its exposed memory changes only where it may be written,
// every operation completes once, and nothing is left: no connection, no goroutine, no count in the Book.
//
// parity: Q04
// fuzz:state
func FuzzConnection(f *testing.F) {
	for _, script := range []string{
		"h\x00q\x00\x05r\x00\x10w\x00\x20",                          // a connection, a request, a read, a write
		"h\x00h\x01h\x02h\x05q\x00\x01q\x01\x01q\x02\x01",           // several processes of one port
		"h\x00g\x00p\x00e\x00\x01s\x00a\x00d\x00\x10d\x00\x20",      // operations of the endpoint, and answers to them
		"h\x00x\x04w\x00\xffq\x00\x01",                              // a damaged write
		"h\x00c\x1eq\x00\x40h\x00q\x00\x02",                         // a request that is cut, and the port again
		"h\x00w\x00\xc8h\x01r\x01\xc8g\x01v\x00q\x01\x03v\x01h\x03", // ends in between
		"h\x00k\x00q\x00\x01h\x01b\x20................................",
	} {
		f.Add([]byte(script))
	}
	z := newFuzzer(f)
	broken := false
	f.Fuzz(func(t *testing.T, script []byte) {
		z := z
		if broken { // the fuzzer repeats what has failed, and the repetitions must not fail because of what is left of it
			z = newFuzzer(t)
		}
		defer func() { broken = broken || t.Failed() }()
		z.play(t, script)
	})
}

// fuzzer is the endpoint that scripts are played against.
type fuzzer struct {
	e        *Endpoint
	book     *hostquota.Book
	readOnly []byte // exposed, beside memory that may be written
	innocent *raw
	line     *rawConn // the innocent peer's
	tag      uint32
	routines int
}

// Keys of the memory that is exposed to scripts, and the bytes of each.
const (
	fuzzOpen   = 4
	fuzzClosed = 6
	fuzzMemory = 40_000
)

func newFuzzer(f testing.TB) *fuzzer {
	z := &fuzzer{book: hostquota.NewBook(hostquota.Limits{hostquota.Connections: 64, hostquota.Handshakes: 64})}
	z.e = openEcho(f, Config{Quota: z.book, KeepAlive: -1, SendTimeout: -1, DialTimeout: 20 * time.Millisecond})
	z.readOnly = bytes.Repeat([]byte{7}, fuzzMemory)
	z.expose(f, fuzzOpen, make([]byte, fuzzMemory), na.ReadWrite)
	z.expose(f, fuzzClosed, z.readOnly, na.ReadOnly)
	z.innocent = newRaw(f)
	z.line, _ = z.innocent.dial(z.e, 1)
	z.innocent.ping(z.line, 0)
	z.routines = runtime.NumGoroutine()
	return z
}

// expose registers memory under a key that scripts know.
func (z *fuzzer) expose(f testing.TB, key uint64, b []byte, access na.Access) {
	m, err := z.e.Register(b, access)
	if err != nil {
		f.Fatal(err)
	}
	s := z.e.mem.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = make(map[uint64]*memory)
	}
	s.byKey[key] = m.(*memory)
}

// play plays a script: an operation in one byte, and its arguments.
func (z *fuzzer) play(t *testing.T, script []byte) {
	host := net.IPv4(127, 0, 0, 1)
	if runtime.GOOS == "linux" { // where each has its own ports
		host[15] += byte(fuzzPeers.Add(1)%250) + 1
	}
	p := &play{t: t, z: z, r: newRawOn(t, host)}
	defer p.leave()
	for steps := 0; len(script) > 1 && steps < 64; steps++ {
		script = p.step(script[0], script[1], script[2:])
	}
	p.end()
	z.tag++
	_ = z.line.SetDeadline(time.Now().Add(patience)) // it is open
	z.line.t, z.innocent.t = t, t
	z.innocent.ping(z.line, z.tag)
	if bytes.Count(z.readOnly, []byte{7}) != fuzzMemory {
		t.Fatal("memory that may only be read has changed")
	}
	until(t, "an endpoint as before", func() bool {
		return z.e.Stats().Open == 1 && z.book.Used(hostquota.Connections) == 1 && z.book.Used(hostquota.Handshakes) == 0 &&
			len(z.e.active.List()) == 1
	})
	until(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= z.routines+8 }) // the fuzzer has some
}

// play is the playing of one script.
type play struct {
	t     *testing.T
	z     *fuzzer
	r     *raw
	conns [4]net.Conn
	ops   []*call
	flip  int // damages the next message, if not 0
	cut   int // sends so much of the next message, if not 0, and closes
}

// step plays one operation and returns the rest of the script.
func (p *play) step(op, arg byte, rest []byte) []byte {
	i := int(arg) % len(p.conns)
	next := func() (n int) {
		if len(rest) > 0 {
			n, rest = int(rest[0]), rest[1:]
		}
		return n
	}
	key := uint64(fuzzOpen)
	switch arg >> 4 {
	case 1:
		key = fuzzClosed
	case 2:
		key = 5 // there is none
	}
	e, to := p.z.e, p.r.lookup(p.z.e)
	one := []na.Fragment{{Remote: &remote{key: key, size: 16, access: na.ReadWrite}, Local: make([]byte, 16)}}
	switch op {
	case 'h':
		p.hello(i, arg)
	case 'q':
		p.write(i, p.r.rawRequest(uint32(arg), make([]byte, next()*40)))
	case 'e':
		p.write(i, rawExpected(uint64(arg), make([]byte, next()*200)))
	case 'r':
		n := uint64(next()) * 150
		p.write(i, appendReadReq(nil, []iov{{addr: uint64(arg), len: n, key: key}, {addr: 0, len: 1, key: key}}))
	case 'w':
		n := uint64(next()) * 150
		b := appendWrite(nil, []iov{{addr: uint64(arg), len: n, key: key}}, n)
		p.write(i, append(b, make([]byte, n)...))
	case 'a':
		p.write(i, appendAck(nil))
	case 'd':
		n := next()
		p.write(i, append(appendReadRsp(nil, uint64(n)), make([]byte, n)...))
	case 'b':
		n := min(int(arg), len(rest))
		p.write(0, bytes.Clone(rest[:n]))
		rest = rest[n:]
	case 'x':
		p.flip = int(arg)
	case 'c':
		p.cut = int(arg) + 1
	case 'v':
		p.close(i)
	case 'g':
		p.start(func(op *na.Op) { e.Get(op, to, one) })
	case 'p':
		p.start(func(op *na.Op) { e.Put(op, to, one) })
	case 's':
		p.start(func(op *na.Op) { e.SendRequest(op, to, uint32(arg), make([]byte, e.Limits().RequestRoom)) })
	case 'k':
		p.start(func(op *na.Op) { e.RecvExpected(op, to, uint32(arg), make([]byte, 1000)) })
	case 'z':
		if len(p.ops) > 0 {
			e.Cancel(&p.ops[int(arg)%len(p.ops)].op)
		}
	}
	return rest
}

// hello connects as a process that arg says: in C or in Go, the same as before or another one, at the raw peer's port or
// at the endpoint's own.
func (p *play) hello(i int, arg byte) {
	p.close(i)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: p.r.addr().Addr().AsSlice()}}
	c, err := d.Dial("tcp4", p.z.e.self.String())
	if err != nil {
		p.t.Skip(err) // ports are short
	}
	m := p.r.request(uint32(arg&3) + 1)
	if arg&4 != 0 {
		m.id = processID{1: arg & 3, 2: 1}
	}
	if arg&8 != 0 {
		m.port = p.z.e.self.Port()
	}
	p.conns[i] = c
	damaged := p.flip > 0
	p.write(i, appendCM(nil, m))
	if arg&16 == 0 && p.conns[i] != nil && !damaged { // else the next message follows at once
		_ = c.SetReadDeadline(time.Now().Add(patience)) // it is open
		_, _ = c.Read(make([]byte, cmLen))              // an answer, or the end
	}
}

// write sends b over a connection, if there is one, damaged or cut if that was asked for.
func (p *play) write(i int, b []byte) {
	c := p.conns[i]
	if c == nil || len(b) == 0 {
		return
	}
	if p.flip > 0 {
		b[p.flip%len(b)] ^= byte(p.flip)
		p.flip = 0
	}
	_ = c.SetWriteDeadline(time.Now().Add(patience)) // it is open
	if cut := p.cut; cut > 0 {
		p.cut = 0
		_, _ = c.Write(b[:min(cut, len(b))]) // the endpoint may have closed its end
		p.close(i)
		return
	}
	_, _ = c.Write(b) // likewise
}

func (p *play) close(i int) {
	if c := p.conns[i]; c != nil {
		_ = c.Close() // the bytes that were sent are on their way
		p.conns[i] = nil
	}
}

// start starts an operation of the endpoint.
func (p *play) start(f func(op *na.Op)) {
	op := newCall()
	p.ops = append(p.ops, op)
	f(&op.op)
}

// leave closes all connections and cancels the operations that wait for a message.
func (p *play) leave() {
	for i := range p.conns {
		p.close(i)
	}
	for _, op := range p.ops {
		p.z.e.Cancel(&op.op)
	}
}

// end ends everything and waits for the operations.
func (p *play) end() {
	p.leave()
	for _, op := range p.ops {
		_ = op.park(p.t) // only its completion matters
	}
}
