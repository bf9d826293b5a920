package xfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/crc32c"
	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// FuzzReceiver lets senders that follow a script loose on a receiver: they ask for any transfer, take the right next step
// of either protocol or a wrong one, and stop anywhere. Time is that of the bubble, so each input takes the same course.
//
// parity: Q04
// fuzz:state
func FuzzReceiver(f *testing.F) {
	for kind := range byte(6) { // each hello, each size: the right steps
		for size := range byte(7) {
			f.Add(append([]byte{0, 0, 0, 0, size, kind, 0, 0}, make([]byte, 40)...))
		}
		for op := range byte(10) { // a wrong one after two right ones
			f.Add(append([]byte{0, 0, 0, 0, 4, kind, 0, 0, 0, 0, 0, 0, 0, 7, 1, op, 1, 3, 200, 9, 1, 2, 3, 4}, make([]byte, 20)...))
		}
	}
	for name := range byte(len(fuzzNames)) {
		f.Add(append([]byte{0, 0, 0, 0, 1, 0, name, 0}, make([]byte, 20)...))
		f.Add(append([]byte{0, 0, 0, 0, 1, 5, name, 0}, make([]byte, 20)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		files := openFiles()
		synctest.Test(t, func(t *testing.T) { attackReceiver(t, &script{b}, b) })
		if n := hostmem.Mapped(); n != 0 {
			t.Errorf("%d mappings are left", n)
		}
		if n := openFiles(); n > files { // it may be fewer, because the collector closes descriptors of tests that ended before
			t.Errorf("%d descriptors are open, %d were before", n, files)
		}
	})
}

// fuzzMaxMemory is enough for a program of the paper.
const fuzzMaxMemory = 64 << 20

func attackReceiver(t *testing.T, s *script, all []byte) {
	root := t.TempDir()
	in := filepath.Join(root, "in")
	if err := os.Mkdir(in, 0o700); err != nil {
		t.Fatal(err)
	}
	device := memdev.Open(memdev.Config{Without: pick(s, 0, verbs.CapWriteImm)})
	dev, meter := verbs.NewDevice(device), &metered{DeviceDriver: device}
	dir := must(OpenDir(t.Context(), in, DirOptions{Overwrite: s.below(2) == 1}))(t)
	own := sha256.Sum256(all)
	innocent := "innocent-" + hex.EncodeToString(own[:8])
	var mu sync.Mutex
	stored := map[storedFile]bool{} // guarded by mu
	r := Receiver{Hashes: doubles, MaxMemory: fuzzMaxMemory, MaxConnections: 4, Open: dir.Open, Protocol: pick(s, Auto, Basic, Fast),
		Done: func(res Result, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				stored[storedFile{res.Name, res.Size}] = true
			}
		}}
	l := must(verbs.Listen(verbs.NewDevice(meter), loopback))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, l) }()

	var senders []*fuzzSender
	end := sync.OnceFunc(func() { // also if the script fails: synctest ends the process if a goroutine is left, and reports no failure
		for _, p := range senders {
			p.close()
		}
		cancel()
		if err := errors.Join(<-ended, l.Close(), dir.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	defer end()
	for range 1 + s.below(3) {
		senders = append(senders, newFuzzSender(t, s, dev, l))
	}
	for steps := 0; !s.done() && steps < 200; steps++ {
		senders[s.below(len(senders))].act(s)
		synctest.Wait()
	}

	data := noise(2*minChunk + int(own[0]))
	res, err := (&Sender{Chunk: minChunk, Window: 2}).Send(t.Context(), dev, l.Addr(), sourceOf(innocent, data))
	if err != nil || res.Size != int64(len(data)) {
		t.Errorf("an innocent sender: %+v, %v", res, err)
	}
	if got, err := os.ReadFile(filepath.Join(in, innocent)); err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
		t.Errorf("%d bytes of %d are stored, or others: %v", len(got), len(data), err)
	}
	// Beside its buffers each transfer has a few slots for messages per buffer.
	if most := meter.most.Load(); most > fuzzMaxMemory+4*(3*defaultMaxWindow+12)*maxMessage {
		t.Errorf("%d bytes of memory were registered at once", most)
	}

	end()
	if n := meter.now.Load(); n != 0 {
		t.Errorf("%d bytes of memory are still registered", n)
	}
	checkStored(t, root, in, stored)
}

// storedFile is the result of a transfer. Of several of one name the one that is reported last need not be the last.
type storedFile struct {
	name string
	size int64
}

// checkStored looks for files that must not exist: files outside of the directory, parts, and files that no transfer ended with.
func checkStored(t *testing.T, root, in string, stored map[storedFile]bool) {
	t.Helper()
	if got := must(os.ReadDir(root))(t); len(got) != 1 {
		t.Errorf("beside the directory: %v", got)
	}
	for _, e := range must(os.ReadDir(in))(t) {
		info := must(e.Info())(t)
		if err := CheckName(e.Name()); err != nil || strings.HasPrefix(e.Name(), ".") || !info.Mode().IsRegular() || info.Mode()&0o111 != 0 {
			t.Errorf("%v %q is stored: %v", info.Mode(), e.Name(), err)
		}
		if !stored[storedFile{e.Name(), info.Size()}] {
			t.Errorf("%q has %d bytes; the receiver reported %v", e.Name(), info.Size(), stored)
		}
	}
}

// fuzzSender is a sender that knows the protocols, if the script lets it follow them.
type fuzzSender struct {
	*fuzzPeer
	agreement
	region verbs.RemoteAddr
	name   []byte
	offset int64 // bytes that were sent
	index  uint64
	named  bool
	begun  bool
	sum    hash.Hash
}

var fuzzNames = []string{"a", "b", "../x", "/etc/passwd", "..", ".", "x/y", "a\\b", "\x00", strings.Repeat("n", 255), strings.Repeat("n", 256),
	".cinnabar-0000000000000000.part", ".profile", "con", "\u202etxt.exe", "", "\xff"}

// newFuzzSender asks for a transfer. It has no connection if the receiver refuses.
func newFuzzSender(t *testing.T, s *script, dev *verbs.Device, l *verbs.Listener) *fuzzSender {
	p := &fuzzSender{fuzzPeer: newFuzzPeer(t, dev), sum: sha256.New()}
	p.got = p.learn
	size := pick[uint64](s, 0, 1, minChunk, minChunk+1, 5*minChunk, 40*minChunk, 1<<40)
	h := hello{digest: SHA256, chunk: minChunk, buffers: 3, size: size, imm: true, meta: Meta{Mode: 0o755}}
	var private []byte
	switch kind := s.below(9); kind {
	case 0, 1, 2, 3: // fast with and without a digest, basic with and without immediates
		h.fast, h.basic, h.imm, h.digest = kind < 2, kind >= 2, kind != 3, []Digest{SHA256, NoDigest}[kind%2]
		private = appendHello(nil, h)
	case 4:
		h = hello{fast: s.below(2) == 0, basic: s.below(2) == 0, imm: s.below(2) == 0, digest: pick[Digest](s, SHA256, NoDigest, "double", "unknown"), chunk: uint32(s.number()),
			buffers: uint16(s.number()), size: s.number(), meta: Meta{Mode: 0o4777, ModTime: time.Unix(0, int64(s.number()))}}
		private = appendHello(nil, h)
	case 5: // a program of the paper
	case 6:
		private = s.bytes(100)
	case 7:
		private = append([]byte(helloMagic), s.bytes(100)...)
	case 8:
		private = appendHello(nil, h)
		private = private[:s.below(len(private)+1)]
	}
	p.name = []byte(pick(s, fuzzNames...))
	if s.below(8) == 7 {
		p.name = s.bytes(300)
	}
	p.agreement = agreement{protocol: Basic, imm: true, buffers: 1, chunk: basicChunk, size: int64(min(h.size, 1<<62))}
	conn, err := verbs.Dial(t.Context(), p.qp, l.Addr(), verbs.ConnParam{PrivateData: private})
	if err != nil {
		return p
	}
	p.conn = conn
	if a, err := parseAnswer(conn.PrivateData()); isOurs(conn.PrivateData()) && err == nil {
		p.agreement = agreement{protocol: a.protocol, imm: a.imm, digest: a.digest, buffers: int(a.buffers), chunk: int(a.chunk), size: p.size}
	}
	return p
}

// learn takes a message of the receiver.
func (p *fuzzSender) learn(b []byte, _ *verbs.WC) {
	if m, n := parseFast(b); p.protocol == Fast && n > 0 && m.kind == fastLayout {
		p.region = verbs.RemoteAddr{Addr: m.number, RKey: m.word}
	}
	if m, n := parseBasic(b); p.protocol == Basic && n > 0 && m.id == basicMR {
		p.region = m.remote
	}
}

// act takes the next step of the script.
func (p *fuzzSender) act(s *script) {
	if p.conn == nil {
		return
	}
	p.poll()
	switch s.below(16) {
	default:
		p.next()
	case 7, 8, 9:
		p.hostile(s, p.region)
	case 10:
		time.Sleep(pick(s, time.Millisecond, time.Second, 2*time.Second, openTimeout, defaultTimeout/2, defaultTimeout)) //nolint:forbidigo // simulated time
	case 11:
		if s.below(4) == 0 {
			_ = p.conn.Disconnect(p.t.Context()) // the receiver may have been faster
		}
	case 12: // a right step that is counted wrongly
		p.index += s.number()
		p.next()
	case 13:
		p.offset = int64(s.number())
		p.next()
	case 14: // this side gives up, and says why
		why := appendErrorMessage(nil, errorMessage{code: Code(s.number()), text: string(s.bytes(300))}, maxErrorMessage)
		if p.protocol == Fast {
			p.send(appendFast(nil, fastMessage{kind: fastFailed, tail: why}))
			break
		}
		p.post(verbs.SendWR{Op: verbs.OpWrite, Remote: p.region}, why)
		p.post(verbs.SendWR{Op: verbs.OpWriteImm, Remote: p.region, Imm: sizeAbort}, why)
	}
	p.poll()
}

// next takes the right next step, as far as this side knows.
func (p *fuzzSender) next() {
	n := int(max(min(int64(p.chunk), p.size-p.offset, fuzzDataLen), 0))
	data := p.mr.Bytes()[fuzzData:][:n]
	if p.protocol == Fast {
		p.nextFast(data)
		return
	}
	switch {
	case !p.imm && !p.begun:
		p.begun = true
		p.send(nil)
	case !p.named:
		p.named = true
		p.announce(append(p.name, 0))
	default:
		p.offset += int64(n)
		p.announce(data)
	}
}

// announce writes to the receiver's buffer of the basic protocol.
func (p *fuzzSender) announce(data []byte) {
	if p.imm {
		p.post(verbs.SendWR{Op: verbs.OpWriteImm, Remote: p.region, Imm: uint32(len(data))}, data)
		return
	}
	p.post(verbs.SendWR{Op: verbs.OpWrite, Remote: p.region}, data)
	p.send(size4(uint32(len(data))))
}

func (p *fuzzSender) nextFast(data []byte) {
	switch {
	case !p.named:
		p.named = true
		p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: p.name[:min(len(p.name), 256)]}))
	case len(data) > 0:
		to := p.region
		to.Addr += p.index % uint64(p.buffers) * uint64(p.chunk)
		p.post(verbs.SendWR{Op: verbs.OpWrite, Remote: to}, data)
		p.send(appendFast(nil, fastMessage{kind: fastChunk, length: uint32(len(data)), number: p.index, word: crc32c.Checksum(data)}))
		p.sum.Write(data)
		p.offset += int64(len(data))
		p.index++
	default:
		p.send(appendFast(nil, totalMessage(fastEnd, p.size, p.digest, (*[32]byte)(p.sum.Sum(nil)))))
	}
}
