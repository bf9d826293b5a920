package verbsrmem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/devicetest"
	"cinnabar/rmem"
	"cinnabar/verbs/flow"
)

func init() { roles["frozen"], roles["frozen server"] = beFrozen, beFrozenServer }

// beFrozenServer lends memory over verbs, until a byte comes from standard input; then it stands still.
func beFrozenServer([]string) error {
	dev, err := devicetest.Open()
	check(err)
	s, err := Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"), rmem.Config{})
	check(err)
	fmt.Println(s.Addr())
	_, err = os.Stdin.Read(make([]byte, 1))
	check(err)
	fmt.Println("stopping")
	check(unix.Kill(os.Getpid(), unix.SIGSTOP))
	select {}
}

// hangingServer returns a client of a server that stands still, its connection, and a region of it.
func hangingServer(t *testing.T) (*rmem.Client, *transport, *rmem.Region) {
	t.Helper()
	p := spawn(t, "frozen server")
	addr, err := netip.ParseAddrPort(p.Stdout.Line())
	must(t, err)
	dev := devicetest.MustOpen(t)
	w, err := connect(devicetest.Context(t), dev, addr)
	must(t, err)
	c, err := network.NewClient(devicetest.Context(t), w)
	must(t, err)
	closing(t, c)
	r := alloc(t, c, 256<<10)
	p.Send("stop")
	p.Stdout.Line()
	eventually(t, "the server stands still", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		return err == nil && bytes.Contains(b, []byte(") T "))
	})
	return c, w, r
}

// TestVerbsContextBehindHang has reads hang at a server that stands still, more than may be under way at a time: one whose
// context ends returns then, though it waits for the others. So does one that has begun.
func TestVerbsContextBehindHang(t *testing.T) {
	t.Parallel()
	if name := devicetest.Name(); name != "" {
		t.Skipf("%s is of the kernel, which answers for a process that stands still", name)
	}
	c, w, r := hangingServer(t)
	const hanging = 2 * smallTransfers
	ended := make(chan error, hanging)
	for range hanging {
		go func() {
			_, err := r.ReadAt(make([]byte, 8), 0)
			ended <- err
		}()
	}
	eventually(t, "the others hang", func() bool { return len(w.stages) == 0 })
	waits, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := r.ReadAtContext(waits, make([]byte, 8), 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the one that waits: %v", err)
	}
	if _, err := r.ReadAtContext(waits, make([]byte, copyBelow+1)[:4096], 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the one that waits too: %v", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("they took %v", took)
	}
	select {
	case err := <-ended:
		t.Errorf("one that has begun ended: %v", err)
	default:
	}
	must(t, c.Close())
	for range hanging {
		if err := <-ended; err == nil {
			t.Error("read from a server that stands still")
		}
	}
}

// TestGivenUpOperationIsItsCallers has reads and a request hang at a server that stands still, and one of the reads be given up,
// which ends the connection. The one gets the error of its context. The others have no context that ends, and their
// errors are not that one's: they say that another operation was given up.
func TestGivenUpOperationIsItsCallers(t *testing.T) {
	t.Parallel()
	if name := devicetest.Name(); name != "" {
		t.Skipf("%s is of the kernel, which answers for a process that stands still", name)
	}
	for _, request := range []bool{false, true} { // what is given up: a read, or a request
		c, w, r := hangingServer(t)
		ended := make(chan error, 2)
		go func() {
			_, err := r.ReadAt(make([]byte, 8), 0)
			ended <- err
		}()
		go func() {
			_, err := r.ReadAt(make([]byte, 2*copyBelow), 0)
			ended <- err
		}()
		eventually(t, "a read is under way", func() bool { return len(w.stages) == smallTransfers-1 })
		short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		t.Cleanup(cancel)
		var err error
		if request {
			_, err = c.Alloc(short, 8)
		} else {
			_, err = r.ReadAtContext(short, make([]byte, 8), 0)
		}
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, flow.ErrGivenUp) {
			t.Errorf("what was given up: %v", err)
		}
		for range cap(ended) {
			if err := <-ended; !errors.Is(err, flow.ErrGivenUp) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("another read: %v", err)
			}
		}
		if _, err := r.ReadAt(make([]byte, 8), 0); !errors.Is(err, flow.ErrGivenUp) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a read afterwards: %v", err)
		}
	}
}

// beFrozen is a client over verbs that has memory without a lease, and stands still from then on.
func beFrozen(args []string) error {
	dev, err := devicetest.Open()
	check(err)
	to, err := netip.ParseAddrPort(args[0])
	check(err)
	c, err := Dial(context.Background(), dev, to)
	check(err)
	r, err := c.Alloc(context.Background(), 1000)
	check(err)
	fmt.Println(r.Handle())
	check(unix.Kill(os.Getpid(), unix.SIGSTOP))
	select {}
}

// TestVerbsSilentClient: a client's host that stands still, as if it had vanished, ends no connection: its kernel even
// acknowledges what comes. The server asks, and takes back what was lent.
// parity: S22
func TestVerbsSilentClient(t *testing.T) {
	t.Parallel()
	if name := devicetest.Name(); name != "" {
		t.Skipf("%s is of the kernel, which answers for a process that stands still", name)
	}
	s, dev := serveVerbs(t, rmem.Config{Silence: 5 * time.Second})
	p := spawn(t, "frozen", s.Addr().String())
	h, err := rmem.ParseHandle(p.Stdout.Line())
	must(t, err)
	eventually(t, "the silent client is gone", func() bool { return s.Stats().Clients == 0 })
	if st := s.Stats(); st.Used != 0 {
		t.Errorf("%+v", st)
	}
	_, err = dialVerbs(t, s, dev).Open(devicetest.Context(t), h)
	wantError(t, "the silent client's", err, rmem.ErrFreed)
}
