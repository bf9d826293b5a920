package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/internal/invariants"
	"cinnabar/verbs"
)

func TestMessageOnTheWire(t *testing.T) {
	m := message{kind: kindSum, op: opRead, value: 0x0102030405060708, digest: [32]byte{0: 0xaa, 31: 0xbb}}
	b := appendMessage(nil, m)
	if len(b) != messageLen || b[0] != 5 || b[1] != 4 || b[8] != 1 || b[15] != 8 || b[16] != 0xaa || b[47] != 0xbb {
		t.Errorf("encoded as %x", b)
	}
	if got, err := parseMessage(b); err != nil || got != m {
		t.Errorf("got %+v, %v, want %+v", got, err, m)
	}
	for n := range b {
		if _, err := parseMessage(b[:n]); err == nil {
			t.Errorf("the first %d bytes were accepted", n)
		}
	}
}

func TestNamesOfUnknownValues(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{kindBye.String(), "bye"}, {messageKind(0).String(), "kind 0"}, {messageKind(99).String(), "kind 99"},
		{opRead.String(), "RDMA read"}, {operation(0).String(), "operation 0"}, {operation(77).String(), "operation 77"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestChunks(t *testing.T) {
	for _, tt := range []struct{ n, size, pieces int }{{0, 4, 0}, {1, 4, 1}, {4, 4, 1}, {5, 4, 2}, {12, 4, 3}} {
		next, pieces := 0, 0
		for off, size := range chunks(tt.n, tt.size) {
			if off != next || size < 1 || size > tt.size {
				t.Errorf("%d by %d: piece of %d at %d", tt.n, tt.size, size, off)
			}
			next, pieces = off+size, pieces+1
		}
		if next != tt.n || pieces != tt.pieces {
			t.Errorf("%d by %d: %d pieces up to %d", tt.n, tt.size, pieces, next)
		}
	}
}

// testSession runs both sides on dev, each in its goroutine.
func testSession(t *testing.T, dev *verbs.Device, src source) (*session, error, error) {
	t.Helper()
	a, b := clitest.TCPPair(t)
	d, err := newSession(dev, src)
	if err != nil {
		t.Fatal(err)
	}
	x := link.NewExchange(a)
	peer, hangUp := context.WithCancelCause(t.Context())
	defer hangUp(nil)
	errParent, errPeer := clitest.Both(
		func() (err error) {
			defer func() {
				if err == nil { // as when the process ends, which the peer must have no more use for
					hangUp(cli.ErrParentEnded)
				}
			}()
			err = d.meet(t.Context(), x)
			if err == nil {
				err = d.run(t.Context())
			}
			if err == nil {
				err = d.files(t.Context(), dev, x)
			}
			if err == nil {
				err = d.calls(t.Context(), dev, x)
			}
			if err != nil {
				cli.Shut(x) // as when the process ends
			}
			return errors.Join(err, d.Close(t.Context()))
		},
		func() error { return serve(peer, dev, false, link.NewExchange(b)) },
	)
	return d, errParent, errPeer
}

// TestMovesEverySize has the software device move less under the race detector: it is that of the demonstrations in
// two processes too.
func TestMovesEverySize(t *testing.T) {
	clitest.EachDevice(t, func(t *testing.T, open func(*testing.T) *verbs.Device) {
		sizes := []int64{0, 1, 4097, chunkLen}
		switch {
		case !invariants.Race:
			sizes = append(sizes, roundLen, roundLen+chunkLen+3)
		case strings.HasSuffix(t.Name(), "/memory"):
			sizes = append(sizes, roundLen+3)
		}
		testMovesEverySize(t, open, sizes)
	})
}

func testMovesEverySize(t *testing.T, open func(*testing.T) *verbs.Device, sizes []int64) {
	for _, size := range sizes {
		src := randomSource(size)
		dev := open(t)
		d, errParent, errPeer := testSession(t, dev, src)
		if errParent != nil || errPeer != nil {
			t.Fatalf("%d bytes: parent: %v; peer: %v", size, errParent, errPeer)
		}
		all := make([]byte, size)
		r, err := src.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := src.fill(r, all); err != nil {
			t.Fatal(err)
		}
		if want := sha256.Sum256(all); d.digest != want {
			t.Errorf("%d bytes: digest %x, want %x", size, d.digest, want)
		}
		list, err := networks(t.Context(), dev)
		if err != nil {
			t.Fatal(err)
		}
		if want := 11 + 4*len(list); len(d.rows) != want {
			t.Fatalf("%d bytes: %d rows, want %d", size, len(d.rows), want)
		}
		for _, r := range d.rows[1:5] {
			if want := (size + chunkLen - 1) / chunkLen; r.operations != want || r.bytes != size {
				t.Errorf("%d bytes: %s took %d operations for %d bytes, want %d", size, r.step, r.operations, r.bytes, want)
			}
		}
		if r := d.rows[11]; r.operations != 4 || r.bytes != 160 || r.verified != "36 each time" {
			t.Errorf("%d bytes: %+v", size, r)
		}
		if r := d.rows[12]; r.operations != (size+chunkLen-1)/chunkLen || r.bytes != size || !strings.HasPrefix(r.verified, "SHA-256 equal") {
			t.Errorf("%d bytes: %+v", size, r)
		}
		for _, r := range d.rows[13:15] {
			if !strings.HasPrefix(r.step, "memory ") || r.operations != (size+chunkLen-1)/chunkLen || r.bytes != size {
				t.Errorf("%d bytes: %+v", size, r)
			}
		}
		if r := d.rows[14]; r.verified != "equal; freed" {
			t.Errorf("%d bytes: %+v", size, r)
		}
		for _, r := range d.rows[7:11] {
			if !strings.HasPrefix(r.step, "file, ") || r.bytes != size || !strings.HasPrefix(r.verified, "SHA-256 equal") {
				t.Errorf("%d bytes: %+v", size, r)
			}
		}
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, bytes.Repeat([]byte("odd"), 12345), 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := fileSource(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, errParent, errPeer := testSession(t, clitest.MemoryDevice(t, 0), src); errParent != nil || errPeer != nil {
		t.Errorf("parent: %v; peer: %v", errParent, errPeer)
	}
}

// A file transfer reads its data from a file that was made before, and finds no file of its name, because the time of a transfer
// would otherwise contain the making of random data and the removal of the file before.
func TestTransfersFindFilesMade(t *testing.T) {
	dev, _, err := openDevice(t.Context(), cli.SoftwareDevice)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(dev)
	src := randomSource(3*cli.MiB + 1)
	e, err := newFileExchange(t.Context(), dev, src)
	if err != nil {
		t.Fatal(err)
	}
	e.peer = e.l.Addr() // a transfer to itself
	want := make([]byte, src.Size)
	r, err := src.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(src.fill(r, want), r.Close()); err != nil {
		t.Fatal(err)
	}
	for _, p := range protocols {
		if got, err := os.ReadFile(e.source); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes of the source, %v", len(got), err)
		}
		if files, err := os.ReadDir(e.received()); err != nil || len(files) > 0 {
			t.Errorf("%v is there before a transfer, %v", files, err)
		}
		sent := make(chan error, 1)
		go func() {
			_, err := e.send(t.Context(), p)
			sent <- err
		}()
		_, digest, err := e.receive(t.Context())
		if err := errors.Join(err, <-sent); err != nil || digest != sha256.Sum256(want) {
			t.Errorf("%v: digest %x, %v", p, digest, err)
		}
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(e.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left behind: %v", err)
	}
}

func TestSkipsWhatTheDeviceLacks(t *testing.T) {
	d, errParent, errPeer := testSession(t, clitest.MemoryDevice(t, verbs.CapWriteImm|verbs.CapAtomics), randomSource(10))
	if errParent != nil || errPeer != nil {
		t.Fatalf("parent: %v; peer: %v", errParent, errPeer)
	}
	skipped := 0
	for _, r := range d.rows {
		if r.verified == "not supported" {
			skipped++
		}
	}
	if skipped != 3 {
		t.Errorf("%d rows say that they were skipped, want 3: %+v", skipped, d.rows)
	}
}

func TestFileThatShrinks(t *testing.T) { clitest.EachDevice(t, testFileThatShrinks) }

func testFileThatShrinks(t *testing.T, open func(*testing.T) *verbs.Device) {
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errParent, errPeer := testSession(t, open(t), source{Path: path, Size: 100})
	clitest.WantError(t, errParent, "became shorter", path)
	clitest.WantError(t, errPeer, "ended")
}

// Two passes that agree within themselves and differ from each other mean
// that the file changed in between.
func TestFileThatChanges(t *testing.T) {
	d := &session{src: source{Path: "the file"}, passes: 1, digest: [32]byte{1}}
	a, b := pairOfTalkers(t)
	d.talker = a
	own := [32]byte{2}
	errParent, errPeer := clitest.Both(
		func() error { return d.compare(t.Context(), opWrite, own) },
		func() error {
			if _, err := b.hear(t.Context()); err != nil {
				return err
			}
			return b.say(t.Context(), message{kind: kindSum, digest: own})
		},
	)
	clitest.WantError(t, errParent, "did the file change meanwhile?")
	if errPeer != nil {
		t.Errorf("peer: %v", errPeer)
	}
}

// A peer whose data differs is found out, with both digests.
// parity: D28
func TestDigestMismatch(t *testing.T) {
	a, b := pairOfTalkers(t)
	d := &session{talker: a}
	errParent, _ := clitest.Both(
		func() error { return d.compare(t.Context(), opWrite, [32]byte{0xaa}) },
		func() error {
			if _, err := b.hear(t.Context()); err != nil {
				return err
			}
			return b.say(t.Context(), message{kind: kindSum, digest: [32]byte{0xbb}})
		},
	)
	clitest.WantError(t, errParent, "verification failed", "aa00", "bb00")
}

// pairOfTalkers returns two connected talkers; the second listens.
func pairOfTalkers(t *testing.T) (a, b *talker) {
	t.Helper()
	dev := clitest.MemoryDevice(t, 0)
	l := clitest.Listen(t, dev)
	var err error
	if a, err = newTalker(dev); err != nil {
		t.Fatal(err)
	}
	if b, err = newTalker(dev); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(a.Close(context.Background()), b.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	if err := b.listen(); err != nil {
		t.Fatal(err)
	}
	errA, errB := clitest.Both(
		func() error { return a.Dial(t.Context(), l.Addr(), verbs.ConnParam{}) },
		func() error {
			r, err := l.Accept(t.Context())
			if err != nil {
				return err
			}
			return b.Accept(t.Context(), r, verbs.ConnParam{})
		},
	)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	return a, b
}

func TestPeerRefusesNonsense(t *testing.T) { clitest.EachDevice(t, testPeerRefusesNonsense) }

func testPeerRefusesNonsense(t *testing.T, open func(*testing.T) *verbs.Device) {
	for _, tt := range []struct {
		name string
		m    message
		text string
	}{
		{"round beyond the memory", message{kind: kindBegin, op: opRead, value: roundLen + 1}, "over the agreed"},
		{"unknown operation", message{kind: kindBegin, op: 9, value: 1}, "unknown operation"},
		{"out of turn", message{kind: kindReady}, "not its turn"},
		{"unknown kind", message{kind: 200}, "kind 200"},
		{"word beyond the memory", message{kind: kindWord, value: 1 << 62}, "word 4611686018427387904 of 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dev := open(t)
			a, b := clitest.TCPPair(t)
			x := link.NewExchange(a)
			d, err := newSession(dev, randomSource(1))
			if err != nil {
				t.Fatal(err)
			}
			_, errPeer := clitest.Both(
				func() error {
					err := d.meet(t.Context(), x)
					if err == nil {
						err = d.say(t.Context(), tt.m)
						<-d.Conn.Done()
					}
					return errors.Join(err, d.Close(t.Context()))
				},
				func() error { return serve(t.Context(), dev, false, link.NewExchange(b)) },
			)
			clitest.WantError(t, errPeer, tt.text)
		})
	}
}

func TestTable(t *testing.T) {
	rows := []row{
		{"out-of-band exchange", 2, 612, 412 * time.Microsecond, "-", "connected"},
		{"RDMA write", 64, 64 * cli.MiB, 32 * time.Millisecond, "2000 MiB/s", equal},
		{"fetch-and-add", 1000, 8000, 20 * time.Millisecond, "50000/s", oldValues},
		{"RPC sum, ofi+tcp", 4, 160, 2 * time.Millisecond, "2000/s", "36 each time"},
		{"memory read, ofi+tcp", 1024, 1023 * cli.MiB, 1234 * time.Second, "10000 MiB/s", equal}, // the widest
	}
	var b bytes.Buffer
	if err := writeTable(&b, rows); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "demo.golden", b.String())
}

// What a handler of the peer refuses fails both sides: the parent with the code, the peer with the reason.
func TestServiceRefusesNonsense(t *testing.T) {
	engine, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	local, err := engine.Expose(cinnabar.WriteOnly, make([]byte, 8))
	if err != nil {
		t.Fatal(err)
	}
	large, err := engine.Expose(cinnabar.ReadOnly, make([]byte, 9))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		text string
		call func(*service) error
	}{
		{"sum of -1 values", func(s *service) error { _, err := s.add(t.Context(), sumIn{N: -1}); return err }},
		{"sum of 2147483647 values", func(s *service) error { _, err := s.add(t.Context(), sumIn{N: 1<<31 - 1}); return err }},
		{"round of 9 bytes, over the agreed 8", func(s *service) error { _, err := s.fetch(t.Context(), large.Handle()); return err }},
	} {
		s := &service{engine: engine, local: local, sum: sha256.New()}
		clitest.WantError(t, tt.call(s), tt.text)
		clitest.WantError(t, s.failure(), tt.text)
	}
}

// The demonstration says why it does not use a device of the machine's own.
func TestDevice(t *testing.T) {
	refuse := func() (*verbs.Device, error) { return nil, errors.New("out of order") }
	if dev, why := firstUsable([]cli.Device{{Name: "a0", Open: refuse}, {Name: "b0", Open: refuse}}); dev != nil || why != "a0 cannot be used: out of order; b0 cannot be used: out of order" {
		t.Errorf("%v, %q", dev, why)
	}
	if dev, why := firstUsable(nil); dev != nil || why == "" {
		t.Errorf("%v, %q", dev, why)
	}
	list := cli.Devices(t.Context())
	dev, why := firstUsable(list[:1])
	if dev == nil {
		t.Fatal(why)
	}
	at, err := loopbackOf(dev)
	if err := errors.Join(err, dev.Close()); err != nil || !at.Addr().IsLoopback() {
		t.Errorf("%v, %v", at, err)
	}
	if dev, why, err := openDevice(t.Context(), cli.SoftwareDevice); err != nil || why != "as --device says" || dev.Close() != nil {
		t.Errorf("%q, %v", why, err)
	}
}

// A build without RDMA hardware support says so in a sentence; that is no failure.
func TestSaysWhichDevice(t *testing.T) {
	if len(cli.Devices(t.Context())) > 1 {
		t.Skip("this machine has RDMA devices, so the command takes one of them; the sentence is about machines without")
	}
	dev, why, err := openDevice(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(dev)
	if !strings.HasPrefix(why, "software device (") || strings.Contains(why, "unsupported operation") || strings.Contains(why, "CGO") {
		t.Errorf("the reason is %q", why)
	}
}
