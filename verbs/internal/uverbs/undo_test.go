//go:build linux

package uverbs

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// unmappable is a provider that cannot map anything.
type unmappable struct{ rxe }

func (unmappable) openCQ(*CQ, []byte) (cqRing, error)    { return nil, syscall.ENOMEM }
func (unmappable) openSRQ(*SRQ, []byte) (srqRing, error) { return nil, syscall.ENOMEM }
func (unmappable) openQP(*QP, []byte) (qpRing, error)    { return nil, syscall.ENOMEM }
func (unmappable) openAH(*AH, []byte) error              { return syscall.ENOMEM }

// TestUndo creates objects whose queues cannot be mapped, and expects that the kernel is
// told to destroy them.
func TestUndo(t *testing.T) {
	c, next := pipeContext(t)
	c.prov = unmappable{}
	pd := &PD{ctx: c}
	cq := &CQ{ctx: c}
	for name, step := range map[string]struct {
		create          func() error
		command, undone uint32
	}{
		"CQ":  {func() error { _, err := c.CreateCQ(1, 0, nil); return err }, cmdCreateCQ, cmdDestroyCQ},
		"SRQ": {func() error { _, err := pd.CreateSRQ(0, 1, 1); return err }, cmdCreateSRQ, cmdDestroySRQ},
		"QP":  {func() error { _, err := pd.CreateQP(QPInit{SendCQ: cq, RecvCQ: cq}); return err }, cmdCreateQP, cmdDestroyQP},
		"AH":  {func() error { _, err := pd.CreateAH(&Path{}); return err }, cmdCreateAH, cmdDestroyAH},
	} {
		if err := step.create(); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s: %v", name, err)
		}
		var commands []uint32
		for b := next(); len(b) > 0; b = b[4*native.Uint16(b[4:]):] {
			commands = append(commands, native.Uint32(b))
		}
		if want := []uint32{step.command, step.undone}; !slices.Equal(commands, want) {
			t.Errorf("%s: commands %v, want %v", name, commands, want)
		}
	}
}

func TestDriverError(t *testing.T) {
	err := error(&DriverError{Name: "mlx5_0", Driver: "mlx5_core"})
	if !errors.Is(err, errors.ErrUnsupported) || err.Error() == "" {
		t.Error(err)
	}
}

func TestTransport(t *testing.T) {
	want := []int{transportUnknown, 0, 0, 0, 1, 2, 3, 4, transportUnknown}
	for typ, transport := range want {
		if got := transportOf(typ); got != transport {
			t.Errorf("node type %d: transport %d, want %d", typ, got, transport)
		}
	}
}

// goneContext is a context whose commands and reads fail with EIO, as those of a device
// that was taken from its users. It is the memory of this process, at the address 0.
func goneContext(t *testing.T) *Context {
	t.Helper()
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("the memory of this process is no file: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	if _, err := unix.Pread(fd, make([]byte, 1), 0); !errors.Is(err, syscall.EIO) {
		t.Skipf("reading at address 0: %v", err)
	}
	return &Context{name: "gone", fd: fd, asyncFD: fd, prov: rxe{}}
}

func TestGone(t *testing.T) {
	c := goneContext(t)
	if _, err := c.AllocPD(); !errors.Is(err, syscall.EIO) {
		t.Errorf("AllocPD: %v", err)
	}
	if _, err := c.QueryDevice(); !errors.Is(err, syscall.EIO) {
		t.Errorf("QueryDevice: %v", err)
	}
	if _, _, err := c.NextAsync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("NextAsync: %v", err)
	}
	if err := (&Channel{fd: c.fd}).Next(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Next: %v", err)
	}
	q := &rxeQP{qp: &QP{ctx: c, typ: qptRC, Cap: QPCap{MaxSendSGE: 4}}, sq: plainQueue(t, 3, 9)}
	q.bell.initSend(c.fd, 1)
	if n, err := q.postSend([]SendWR{{Op: opSend}}, nil); n != 0 || !errors.Is(err, syscall.EIO) {
		t.Errorf("postSend: %d, %v", n, err)
	}
	cq := &rxeCQ{queue: plainQueue(t, 3, 6)}
	cq.bell.initNotify(c.fd, 1)
	if err := cq.arm(false); !errors.Is(err, syscall.EIO) {
		t.Errorf("arm: %v", err)
	}
	if n, err := cq.poll(make([]WC, 4)); n != 0 || err != nil {
		t.Errorf("poll: %d, %v", n, err)
	}
	for name, o := range map[string]interface{ Close() error }{
		"PD": &PD{ctx: c}, "MR": &MR{ctx: c}, "MW": &MW{ctx: c}, "AH": &AH{ctx: c},
		"CQ": &CQ{ctx: c, ring: &rxeCQ{}}, "SRQ": &SRQ{ctx: c, ring: &rxeRQ{}}, "QP": &QP{ctx: c, ring: &rxeQP{}},
	} {
		if err := o.Close(); err != nil {
			t.Errorf("closing a %s: %v", name, err)
		}
	}
}
