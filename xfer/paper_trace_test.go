package xfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// deviceEnv names an RDMA device of this machine for the tests that can use one; without it they use the software device.
const deviceEnv = "CINNABAR_RDMA_DEVICE"

// chosenDevice opens the device for such a test, which closes it, and returns an address to listen at.
func chosenDevice(t testing.TB) (*verbs.Device, netip.AddrPort) {
	t.Helper()
	name := os.Getenv(deviceEnv)
	if name == "" {
		return must(iwarp.Open(iwarp.Config{}))(t), loopback
	}
	dev := must(rdmacore.Open(name))(t)
	for _, a := range must(dev.Query())(t).Ports[0].Addrs {
		if a.Is4() {
			return dev, netip.AddrPortFrom(a, 0)
		}
	}
	t.Fatalf("device %s has no IPv4 address", name)
	panic("unreachable")
}

// spoken is a message of a recorded conversation.
type spoken struct {
	server bool
	imm    uint32 // of the client's writes
	data   []byte
}

// readTrace reads a recorded conversation.
func readTrace(t testing.TB, name string) []spoken {
	t.Helper()
	text := string(must(os.ReadFile(filepath.Join("testdata", name)))(t))
	var out []spoken
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		s := spoken{server: f[0] == "server"}
		if !s.server {
			s.imm = uint32(must(strconv.ParseUint(f[2], 16, 32))(t))
		}
		s.data = traceBytes(t, strings.Join(f[3:], ""))
		if want := map[bool]string{true: "send", false: "write-imm"}[s.server]; f[1] != want {
			t.Fatalf("%s: %q is not what a %s does", name, line, f[0])
		}
		out = append(out, s)
	}
	return out
}

// traceBytes reads bytes in hexadecimal; a byte, "*" and a number is that many of it.
func traceBytes(t testing.TB, text string) []byte {
	t.Helper()
	text, times, repeated := strings.Cut(text, "*")
	b := unhex(t, text)
	if repeated {
		b = bytes.Repeat(b, must(strconv.Atoi(times))(t))
	}
	return b
}

// at returns a message of the recorded server with another region.
func (s *spoken) at(r verbs.RemoteAddr) []byte {
	b := bytes.Clone(s.data)
	binary.LittleEndian.PutUint64(b[8:], r.Addr)
	binary.LittleEndian.PutUint32(b[16:], r.RKey)
	return b
}

// The recorded client sends its file to the receiver, which says byte for byte what the recorded server said.
// parity(recorded): B04 B50
func TestPaperTraceServer(t *testing.T) {
	dev, at := chosenDevice(t)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	srv := serveAt(t, dev, at, Receiver{}, DirOptions{})
	far, _ := chosenDevice(t)
	p := newRawOn(t, far, false)
	p.conn = must(verbs.Dial(p.ctx, p.qp, srv.addr, verbs.ConnParam{}))(t)
	var region verbs.RemoteAddr
	for n, s := range readTrace(t, "paper.trace") {
		if !s.server {
			p.writeImm(region, s.data, s.imm)
			continue
		}
		got, _ := p.receive()
		if n == 0 && len(got) == basicLen { // tells where to write
			region = verbs.RemoteAddr{Addr: binary.LittleEndian.Uint64(got[8:]), RKey: binary.LittleEndian.Uint32(got[16:])}
		}
		if want := s.at(region); !bytes.Equal(got, want) {
			t.Errorf("message %d:\n got % x\nwant % x", n, got, want)
		}
	}
	p.leave()
	if _, err := srv.outcome(p.ctx); err != nil {
		t.Error(err)
	}
	srv.wantFile("small", bytes.Repeat([]byte("x"), 3000))
}

// The recorded server takes the file of a sender, which writes byte for byte what the recorded client wrote.
// parity(recorded): B04 B50
func TestPaperTraceClient(t *testing.T) {
	near, at := chosenDevice(t)
	raw := newRawOn(t, near, true)
	addr, accepted := raw.accept(at)
	dev, _ := chosenDevice(t)
	sent := make(chan error, 1)
	go func() {
		_, err := (&Sender{}).Send(raw.ctx, dev, addr, sourceOf("small", bytes.Repeat([]byte("x"), 3000)))
		sent <- err
	}()
	p := <-accepted
	for n, s := range readTrace(t, "paper.trace") {
		if s.server {
			clear(p.buffer())
			p.say(s.at(p.region()))
			continue
		}
		_, imm := p.receive()
		if got := p.buffer()[:len(s.data)]; imm != s.imm || !bytes.Equal(got, s.data) {
			t.Errorf("message %d: immediate %08x, want %08x; %s", n, imm, s.imm, firstDifference(got, s.data))
		}
		if rest := bytes.Trim(p.buffer()[len(s.data):], "\x00"); len(rest) > 0 {
			t.Errorf("message %d: %d bytes more were written", n, len(rest))
		}
	}
	p.ends()
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// firstDifference tells where two messages part.
func firstDifference(got, want []byte) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d is %02x, want %02x", i, got[i], want[i])
		}
	}
	return "the bytes are right"
}

// Both sides are ours, on the chosen device: the steps are the paper's, in the form that the device can do.
// parity: B50
func TestPaperStepsOnDevice(t *testing.T) {
	dev, at := chosenDevice(t)
	var h history
	s := Sender{Protocol: Basic, Chunk: 2 * minChunk, Trace: h.tracer(false)}
	src, want := sourceOf("test-file", noise(5*minChunk)), paperSteps
	if !must(dev.Query())(t).Caps.Has(verbs.CapWriteImm) {
		s.Chunk = minChunk
		src, want = sourceOf("f", noise(minChunk)), paperStepsWithoutImmediates
	}
	l := must(verbs.Listen(dev, at))(t)
	r := Receiver{Trace: h.tracer(true), Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
		return &memFile{disk: instant}, nil
	}}
	received := make(chan error, 1)
	go func() {
		_, err := r.ServeOne(testContext(t), l)
		received <- err
	}()
	_, err := s.Send(testContext(t), dev, l.Addr(), src)
	if err := errors.Join(err, <-received, l.Close(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	h.want(t, want)
}
