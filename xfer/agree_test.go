package xfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// What a receiver decides, by what sender and receiver can and want.
// parity: B31
func TestChoose(t *testing.T) {
	const mib = 1 << 20
	all := hello{basic: true, fast: true, imm: true, digest: SHA256, size: 1 << 40}
	sized := func(size uint64, f func(h *hello)) hello { h := all; h.size = size; f(&h); return h }
	asked := func(buffers uint16, chunk uint32) func(h *hello) {
		return func(h *hello) { h.buffers, h.chunk = buffers, chunk }
	}
	change := func(f func(h *hello)) hello { h := all; f(&h); return h }
	for name, c := range map[string]struct {
		r    Receiver
		hi   hello
		imm  bool
		want agreement
	}{
		"digest wanted":           {Receiver{Digest: SHA256}, all, true, agreement{protocol: Fast, digest: SHA256, buffers: 8, chunk: mib / 2}},
		"digest by name":          {Receiver{Hashes: Hashes{"sha256-2": sha256.New}}, change(func(h *hello) { h.digest = "sha256-2" }), true, agreement{protocol: Fast, digest: "sha256-2", buffers: 8, chunk: mib / 2}},
		"defaults":                {Receiver{}, all, true, agreement{protocol: Fast, digest: SHA256, buffers: 8, chunk: mib / 2}},
		"no immediates":           {Receiver{}, change(func(h *hello) { h.imm = false }), false, agreement{protocol: Fast, digest: SHA256, buffers: 8, chunk: mib / 2}},
		"sender's wishes":         {Receiver{}, change(func(h *hello) { h.buffers, h.chunk = 3, 4096 }), true, agreement{protocol: Fast, digest: SHA256, buffers: 3, chunk: 4096}},
		"receiver's limits":       {Receiver{MaxWindow: 2, MaxChunk: 8192}, change(func(h *hello) { h.buffers, h.chunk = 100, mib }), true, agreement{protocol: Fast, digest: SHA256, buffers: 2, chunk: 8192}},
		"default limits":          {Receiver{}, change(func(h *hello) { h.buffers, h.chunk = 65535, 1<<32-1 }), true, agreement{protocol: Fast, digest: SHA256, buffers: 64, chunk: 64 * mib}},
		"tiny chunk":              {Receiver{}, change(func(h *hello) { h.chunk = 1 }), true, agreement{protocol: Fast, digest: SHA256, buffers: 8, chunk: 4096}},
		"no digest":               {Receiver{}, change(func(h *hello) { h.digest = NoDigest }), true, agreement{protocol: Fast, digest: NoDigest, buffers: 8, chunk: mib / 2}},
		"empty file":              {Receiver{}, sized(0, asked(64, 64*mib)), true, agreement{protocol: Fast, digest: SHA256, buffers: 1, chunk: 4096}},
		"small file":              {Receiver{}, sized(4097, asked(64, 64*mib)), true, agreement{protocol: Fast, digest: SHA256, buffers: 1, chunk: 8192}},
		"one byte over a chunk":   {Receiver{}, sized(8193, asked(64, 8192)), true, agreement{protocol: Fast, digest: SHA256, buffers: 2, chunk: 8192}},
		"whole chunks":            {Receiver{}, sized(8*8192, asked(64, 8192)), true, agreement{protocol: Fast, digest: SHA256, buffers: 8, chunk: 8192}},
		"largest file":            {Receiver{}, sized(1<<63-1, asked(64, 64*mib)), true, agreement{protocol: Fast, digest: SHA256, buffers: 64, chunk: 64 * mib}},
		"basic, small file":       {Receiver{Protocol: Basic}, sized(100, asked(0, 0)), true, agreement{protocol: Basic, imm: true, digest: NoDigest, buffers: 1, chunk: 4096}},
		"receiver wants basic":    {Receiver{Protocol: Basic}, all, true, agreement{protocol: Basic, imm: true, digest: NoDigest, buffers: 1, chunk: 10 * mib}},
		"sender wants basic":      {Receiver{}, change(func(h *hello) { h.fast = false }), true, agreement{protocol: Basic, imm: true, digest: NoDigest, buffers: 1, chunk: 10 * mib}},
		"basic, sender without":   {Receiver{Protocol: Basic}, change(func(h *hello) { h.imm = false }), true, agreement{protocol: Basic, digest: NoDigest, buffers: 1, chunk: 10 * mib}},
		"basic, receiver without": {Receiver{Protocol: Basic}, all, false, agreement{protocol: Basic, digest: NoDigest, buffers: 1, chunk: 10 * mib}},
	} {
		h := host{Receiver: &c.r}
		got, why, err := h.choose(c.hi, c.imm)
		c.want.negotiated, c.want.size = true, int64(c.hi.size)
		if d := cmp.Diff(got, c.want, cmp.AllowUnexported(agreement{}, lanesAgreed{}, laneRef{})); err != nil || d != "" || why == "" {
			t.Errorf("%s: %v, %q, %s", name, err, why, d)
		}
	}
	for name, c := range map[string]struct {
		r  Receiver
		hi hello
	}{
		"nothing offered":              {Receiver{}, hello{digest: SHA256}},
		"fast not offered":             {Receiver{Protocol: Fast}, hello{basic: true, digest: SHA256}},
		"basic not offered":            {Receiver{Protocol: Basic}, hello{fast: true, digest: SHA256}},
		"digest not known":             {Receiver{}, hello{fast: true, basic: true, digest: "crc"}},
		"another digest":               {Receiver{Digest: NoDigest}, all},
		"a digest of the sender alone": {Receiver{Digest: SHA256}, change(func(h *hello) { h.digest = NoDigest })},
		"no digest in basic":           {Receiver{Digest: SHA256}, change(func(h *hello) { h.fast = false })},
	} {
		h := host{Receiver: &c.r}
		if _, _, err := h.choose(c.hi, true); !errors.Is(err, CodeUnsupported) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Answers that nobody asked for are not believed.
// parity: B31
func TestCheckAnswer(t *testing.T) {
	good := agreement{protocol: Fast, digest: SHA256, buffers: 8, chunk: 1 << 20}
	for name, c := range map[string]struct {
		s      Sender
		change func(a *agreement)
		ok     bool
	}{
		"defaults":             {Sender{}, func(*agreement) {}, true},
		"fewer":                {Sender{}, func(a *agreement) { a.buffers = 1 }, true},
		"more buffers":         {Sender{}, func(a *agreement) { a.buffers = 9 }, false},
		"more than asked":      {Sender{Window: 2}, func(a *agreement) { a.buffers = 3 }, false},
		"no buffers":           {Sender{}, func(a *agreement) { a.buffers = 0 }, false},
		"larger than asked":    {Sender{Chunk: 1 << 19}, func(*agreement) {}, false},
		"memory not asked for": {Sender{}, func(a *agreement) { a.chunk = basicChunk + 1 }, false},
		"beyond messages":      {Sender{}, func(a *agreement) { a.chunk = maxChunk + 1 }, false},
		"too small":            {Sender{}, func(a *agreement) { a.chunk = minChunk - 1 }, false},
		"other protocol":       {Sender{Protocol: Basic}, func(*agreement) {}, false},
		"two basic buffers":    {Sender{}, func(a *agreement) { a.protocol, a.buffers = Basic, 2 }, false},
		"immediates":           {Sender{}, func(a *agreement) { a.protocol, a.buffers, a.imm = Basic, 1, true }, false},
		"without immediates":   {Sender{}, func(a *agreement) { a.protocol, a.buffers = Basic, 1 }, true},
		"no digest":            {Sender{}, func(a *agreement) { a.digest = NoDigest }, false},
		"another digest":       {Sender{Digest: "one"}, func(a *agreement) { a.digest = "other" }, false},
		"basic with a digest":  {Sender{Digest: "one"}, func(a *agreement) { a.protocol, a.buffers = Basic, 1 }, false},
	} {
		a := good
		c.change(&a)
		d := delivery{Sender: &c.s, digest: SHA256}
		if c.s.Digest != "" {
			d.digest = c.s.Digest
		}
		if err := d.checkAnswer(&a, false); (err == nil) != c.ok {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Both sides' logs say which form was chosen, and the receiver's says why.
// parity: B31
func TestLogSaysWhich(t *testing.T) {
	for _, w := range ways[:7] {
		ctx := testContext(t)
		var sends, receives logBuffer
		srv := serve(t, device(t, w.server), Receiver{Logger: receives.logger()}, DirOptions{})
		s := Sender{Protocol: w.protocol, Logger: sends.logger()}
		if _, err := s.Send(ctx, device(t, w.client), srv.addr, sourceOf("f", nil)); err != nil {
			t.Fatal(err)
		}
		form := `form="write and send"`
		if w.imm {
			form = `form="write with immediate"`
		}
		wantText(t, sends.String(), "protocol="+w.protocol.String(), form, "peer=127.0.0.1")
		wantText(t, receives.String(), "protocol="+w.protocol.String(), form)
		switch {
		case w.protocol == Fast:
		case w.server.NoImmediates:
			wantText(t, receives.String(), "the receiver's device lacks write with immediate data")
		case w.client.NoImmediates:
			wantText(t, receives.String(), "the sender's device lacks write with immediate data")
		default:
			wantText(t, receives.String(), "both sides have write with immediate data")
		}
	}
}

// Chunks over the largest message of a device's port are refused, with the limit.
// parity: B35
func TestChunkOverPortLimit(t *testing.T) {
	dev := verbs.NewDevice(smallMessages{must(iwarp.Open(iwarp.Config{}))(t).Driver()})
	_, err := (&Sender{Chunk: 64 << 10}).Send(t.Context(), dev, loopback, sourceOf("f", nil))
	wantCode(t, err, CodeTooLarge, false, "65536 bytes", "limit of 32768", "MaxMsgSize")
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

type smallMessages struct{ verbs.DeviceDriver }

func (d smallMessages) Query() (verbs.DeviceAttr, error) {
	attr, err := d.DeviceDriver.Query()
	attr.Ports[0].MaxMsgSize = 32 << 10
	return attr, err
}

// recorder is an observer that checks what it is promised.
type recorder struct {
	t         *testing.T
	simulated bool // time passes only while all wait, so a transfer may take none
	mu        sync.Mutex

	started, finished int
	size, advanced    int64
	err               error
}

func (r *recorder) Start(res Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started++; res.Name != "f" || res.Protocol == Auto || !res.Peer.IsValid() {
		r.t.Errorf("started with %+v", res)
	}
	r.size = res.Size
}

func (r *recorder) Advance(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.advanced += n; r.started != 1 || r.finished > 0 || n <= 0 || r.advanced > r.size {
		r.t.Errorf("advanced by %d: %+v", n, r.advanced)
	}
}

func (r *recorder) Finish(res Result, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished++; res.Size != r.advanced || res.Duration <= 0 && !r.simulated {
		r.t.Errorf("finished with %+v after %d", res, r.advanced)
	}
	r.err = err
}

// Observers of both sides see the whole file pass, once.
// parity: B49
func TestProgress(t *testing.T) {
	ctx := testContext(t)
	for _, w := range ways[:7] {
		send, receive := &recorder{t: t}, &recorder{t: t}
		srv := serve(t, device(t, w.server), Receiver{Progress: func() Progress { return receive }}, DirOptions{})
		dev := device(t, w.client)
		s := Sender{Protocol: w.protocol, Chunk: minChunk, Progress: func() Progress { return send }}
		const size = 10*minChunk + 1
		if _, err := s.Send(ctx, dev, srv.addr, sourceOf("f", noise(size))); err != nil {
			t.Fatal(err)
		}
		srv.stop()
		for side, r := range map[string]*recorder{"sender": send, "receiver": receive} {
			if r.started != 1 || r.finished != 1 || r.advanced != size || r.size != size || r.err != nil {
				t.Errorf("%s, %s: %d started, %d finished, %d of %d, %v", w.name, side, r.started, r.finished, r.advanced, r.size, r.err)
			}
		}
	}
	// A transfer that is refused begins at the sender and never at the receiver.
	send, receive := &recorder{t: t}, &recorder{t: t}
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Progress: func() Progress { return receive },
		Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return nil, errors.New("no") }}, DirOptions{})
	s := Sender{Progress: func() Progress { return send }}
	_, err := s.Send(ctx, device(t, iwarp.Config{}), srv.addr, sourceOf("f", nil))
	srv.stop()
	if send.finished != 1 || !errors.Is(send.err, err) || receive.started+receive.finished != 0 {
		t.Errorf("sender %d, %v; receiver %d, %d", send.finished, send.err, receive.started, receive.finished)
	}
}

// Transfers of all kinds give back every descriptor.
// parity: B12
func TestDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are counted in the proc file system of Linux")
	}
	count := func() int { return len(must(os.ReadDir("/proc/self/fd"))(t)) }
	ctx := testContext(t)
	var before int
	for i := range 6 {
		serving, dev := must(iwarp.Open(iwarp.Config{}))(t), must(iwarp.Open(iwarp.Config{}))(t)
		srv := serve(t, serving, Receiver{}, DirOptions{})
		s := Sender{Protocol: Protocol(1 + i%2)}
		for _, size := range []int64{5, 4, 5} { // stored, changed, refused
			src := sourceOf("f", []byte("hello"))
			src.Size = size
			_, _ = s.Send(ctx, dev, srv.addr, src) // the errors are those of other tests
		}
		srv.stop()
		if err := errors.Join(dev.Close(), serving.Close()); err != nil {
			t.Error(err)
		}
		if i == 1 {
			before = count() // the runtime has opened its own by now
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

// discard is a file that keeps nothing.
type discard struct{}

func (discard) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (discard) Commit() error                          { return nil }
func (discard) Discard() error                         { return nil }

// zeros is a source without an end of its own: it has as much as is asked for,
// but nothing beyond a whole number of chunks.
type zeros struct{}

func (zeros) ReadAt(b []byte, off int64) (int, error) {
	if len(b) == 1 && off%minChunk == 0 {
		return 0, io.EOF
	}
	clear(b)
	return len(b), nil
}
