package pingpong

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/verbsrules"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
	"cinnabar/verbs/verbstest/memdev"
)

// handDevice is a device whose queue pairs can be connected by hand, and then do
// nothing.
type handDevice struct{ verbs.DeviceDriver }

func (d handDevice) Query() (verbs.DeviceAttr, error) {
	a, err := d.DeviceDriver.Query()
	a.Caps |= verbs.CapRawState
	a.Ports[0].LID, a.Ports[0].ActiveMTU = 7, 3
	a.Ports[0].GIDs = [][16]byte{{0: 0xfe, 1: 0x80, 15: 9}}
	a.Ports[0].GIDTable = []verbs.GIDEntry{{Index: 0, GID: a.Ports[0].GIDs[0]}, {Index: 3, GID: [16]byte{15: 8}}}
	return a, err
}

func (d handDevice) AllocPD() (verbs.PDDriver, error) {
	pd, err := d.DeviceDriver.AllocPD()
	return handPD{pd}, err
}

type handPD struct{ verbs.PDDriver }

func (p handPD) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	qp, err := p.PDDriver.CreateQP(init)
	if err != nil {
		return nil, err
	}
	return &handQP{QPDriver: qp, state: verbs.StateInit}, nil
}

type handQP struct {
	verbs.QPDriver
	state verbs.QPState
}

func (q *handQP) Modify(a verbs.QPAttr) error {
	if err := verbsrules.CheckTransition(verbs.RC, q.state, a.State, a.Mask); err != nil {
		return err
	}
	q.state = a.State
	return nil
}

func (q *handQP) Query() (verbs.QPAttr, verbs.QPInit) {
	a, init := q.QPDriver.Query()
	a.State = q.state
	return a, init
}

// newHandBouncer makes a side whose queue pair is connected by hand.
func newHandBouncer(t *testing.T, o options) *bouncer {
	t.Helper()
	dev := verbs.NewDevice(handDevice{memdev.Open(memdev.Config{})})
	b, err := newBouncer(dev, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.Release(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// foreignDest is what one of rdma-core's programs says of itself.
const foreignDest = "0000:000011:3c6bd2:00000000000000000000ffff0a090001\x00"

// meet runs one side's part of the exchange.
func meet(ctx context.Context, b *bouncer, c net.Conn, client bool) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := b.meetByHand(ctx, c, client, io.Discard)
		cli.Shut(c)
		done <- err
	}()
	return done
}

// want reads exactly what rdma-core's programs expect, which read once.
func want(t *testing.T, c net.Conn, text string) string {
	t.Helper()
	b := make([]byte, len(foreignDest)+1)
	n, err := c.Read(b)
	if err != nil || n != len(text) {
		t.Fatalf("read %q, %v; want %d bytes", b[:n], err, len(text))
	}
	return string(b[:n])
}

// parity: V71
func TestForeignServer(t *testing.T) {
	b := newHandBouncer(t, defaults())
	ours, c := clitest.TCPPair(t)
	done := meet(t.Context(), b, ours, true)
	said := want(t, c, foreignDest)
	if in, err := oob.ParseQPInfo(said[:len(said)-1]); err != nil || in.LID != 7 || in.QPN != b.QP.Num() || in.PSN != b.own.PSN || in.GID[15] != 9 || !strings.HasSuffix(said, "\x00") {
		t.Errorf("the client said %q: %+v, %v", said, in, err)
	}
	if _, err := io.WriteString(c, foreignDest); err != nil {
		t.Fatal(err)
	}
	if got := want(t, c, doneWord); got != doneWord {
		t.Errorf("the client said %q", got)
	}
	cli.Shut(c)
	if err := <-done; err != nil || b.QP.State() != verbs.StateRTS {
		t.Errorf("%v, state %v", err, b.QP.State())
	}
}

// parity: V71
func TestForeignClient(t *testing.T) {
	o := defaults()
	o.gid = 3
	b := newHandBouncer(t, o)
	ours, c := clitest.TCPPair(t)
	done := meet(t.Context(), b, ours, false)
	if _, err := io.WriteString(c, foreignDest); err != nil {
		t.Fatal(err)
	}
	said := want(t, c, foreignDest)
	if b.QP.State() != verbs.StateRTS {
		t.Errorf("the server answered in state %v", b.QP.State())
	}
	if in, err := oob.ParseQPInfo(said[:len(said)-1]); err != nil || in.QPN != b.QP.Num() || in.GID[15] != 8 {
		t.Errorf("the server said %q: %+v, %v", said, in, err)
	}
	if _, err := io.WriteString(c, doneWord); err != nil {
		t.Fatal(err)
	}
	cli.Shut(c) // with the server's line unread: it gets a reset
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Two of ours compare their settings behind the exchange.
// parity: V71
func TestByHandSettings(t *testing.T) {
	for name, differ := range map[string]bool{"same": false, "different": true} {
		t.Run(name, func(t *testing.T) {
			o := defaults()
			server := newHandBouncer(t, o)
			if differ {
				o.iters = 7
			}
			client := newHandBouncer(t, o)
			a, b := clitest.TCPPair(t)
			s, c := meet(t.Context(), server, a, false), meet(t.Context(), client, b, true)
			for _, err := range []error{<-s, <-c} {
				_, mismatch := errors.AsType[*oob.SettingsError](err)
				if mismatch != differ || !differ && err != nil {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

func TestByHandHostile(t *testing.T) {
	for name, tt := range map[string]struct {
		says      []string // by the client
		attempted bool
		text      string
	}{
		"nothing":             {nil, false, "EOF"},
		"half":                {[]string{foreignDest[:20]}, false, "unexpected EOF"},
		"no NUL":              {[]string{foreignDest[:51] + "\n"}, false, "does not end in a NUL"},
		"capitals":            {[]string{strings.ToUpper(foreignDest)}, false, "lower-case"},
		"nonsense":            {[]string{strings.Repeat("x", 51) + "\x00"}, false, "form"},
		"not done":            {[]string{foreignDest, "gone\x00"}, true, `"gone\x00"`},
		"half done":           {[]string{foreignDest, "do"}, true, "unexpected EOF"},
		"settings":            {[]string{foreignDest, doneWord, "size=4\n"}, true, "form"},
		"endless settings":    {[]string{foreignDest, doneWord, strings.Repeat("x", maxLine)}, true, "over 512 bytes"},
		"half of the line":    {[]string{foreignDest, doneWord, "0000"}, true, "EOF"},
		"hangs up in between": {[]string{foreignDest}, true, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHandBouncer(t, defaults())
			ours, c := clitest.TCPPair(t)
			done := meet(t.Context(), b, ours, false)
			if _, err := io.WriteString(c, strings.Join(tt.says, "")); err != nil {
				t.Fatal(err)
			}
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			clitest.WantError(t, <-done, tt.text)
			if b.attempted != tt.attempted {
				t.Errorf("the queue pair is used up: %v, want %v", b.attempted, tt.attempted)
			}
		})
	}
}

// A peer that says nothing holds nobody longer than the context.
func TestByHandInterrupted(t *testing.T) {
	stop := errors.New("stop")
	for _, client := range []bool{true, false} {
		b := newHandBouncer(t, defaults())
		ours, _ := clitest.TCPPair(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := meet(ctx, b, ours, client)
		cancel(stop)
		if err := <-done; !errors.Is(err, stop) {
			t.Errorf("client %v: got %v", client, err)
		}
	}
}

func TestSilence(t *testing.T) {
	b := newHandBouncer(t, defaults())
	ctx, release := b.limitSilence(t.Context())
	defer release()
	b.silence.Reset(0)
	<-ctx.Done()
	if err := b.step(ctx); !errors.Is(err, errSilence) {
		t.Errorf("got %v", err)
	}
}

func TestTransport(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sized bool
		typ   verbs.QPType
		size  int
	}{{"rc", false, verbs.RC, 4096}, {"uc", false, verbs.UC, 4096}, {"ud", false, verbs.UD, 2048}, {"ud", true, verbs.UD, 1}} {
		o := options{size: 1}
		if err := o.setTransport(tt.name, tt.sized); err != nil || o.service != tt.typ || o.size != tt.size {
			t.Errorf("%+v: %v, %v, size %d", tt, err, o.service, o.size)
		}
	}
	clitest.WantError(t, (&options{}).setTransport("xrc", false), "xrc", "rc, uc or ud")
	o := defaults()
	o.service = verbs.UC
	clitest.WantError(t, o.fits(clitest.MemoryDevice(t, 0)), "no queue pairs of type UC", "RC")
	o.service, o.gid = verbs.RC, 9
	dev := verbs.NewDevice(handDevice{memdev.Open(memdev.Config{})})
	_, err := newBouncer(dev, &o)
	clitest.WantError(t, err, "no GID with index 9", "[0 3]")
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
