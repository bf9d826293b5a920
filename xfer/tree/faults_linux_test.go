package tree

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/testproc"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// troubles are what befalls a receiver at a step, by the argument of a victim.
var troubles = map[string]func(dir string) error{
	"kill": func(string) error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) },
	"nofile": func(string) error {
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3})
	},
	"fsize": func(string) error {
		return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 50_000, Max: 50_000})
	},
	"read-only": func(dir string) error {
		if os.Geteuid() != 0 {
			return os.Chmod(dir, 0o555)
		}
		return syscall.Setuid(65534) // the directory is not its own
	},
}

// A receiver in trouble gives the sender the reason, and a second try goes on where the first one stopped.
//
// parity: X02
func TestReceiverInTrouble(t *testing.T) {
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(from, 0o755))
	data := make([]byte, 100_000)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data) // never fails
	for i := range 10 {
		check(t, os.WriteFile(filepath.Join(from, "file"+strconv.Itoa(i)), data, 0o644))
	}
	dev := must(iwarp.Open(iwarp.Config{}))(t)
	defer dev.Close()
	s := xfer.Sender{Chunk: 4 << 10, Window: 4}
	for name, c := range map[string]struct {
		step  int
		code  xfer.Code
		text  string
		fresh bool // nothing can have come before
	}{
		"nofile":    {500, xfer.CodeStorage, "too many open files", false},
		"fsize":     {500, xfer.CodeStorage, "file too large", false},
		"kill":      {500, xfer.CodeLost, "the connection ended", false},
		"read-only": {1, xfer.CodeStorage, "permission denied", true},
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			server := testproc.Start(t, testproc.Command{Role: "victim", Args: []string{"receiver", strconv.Itoa(c.step), to, name}})
			addr := netip.MustParseAddrPort(server.Stdout.Expect(`^\S+$`)[0])
			_, err := s.Send(testContext(t), dev, addr, wished(t, from, 0))
			wantError(t, err, c.code, c.text)
			_ = server.Wait() // it has the error too, or was killed
			check(t, os.Chmod(to, 0o755))
			goesOn(t, to, from, c.fresh)
		})
	}
	t.Run("full", func(t *testing.T) {
		d, to := openDir(t, keeping())
		open := func(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
			f, err := d.Open(ctx, from, name, meta, size)
			if err != nil {
				return nil, err
			}
			return &fullFile{f.(*claimed), size / 2}, nil
		}
		over := make(chan error, 1)
		_, err := serve(t, xfer.Receiver{Open: open, Done: func(_ xfer.Result, err error) { over <- err }})(wished(t, from, 0))
		if err := <-over; err == nil { // the receiver holds the tree until then
			t.Error("the receiver has no error")
		}
		wantError(t, err, xfer.CodeStorage, `cannot write "file`, "the disk of the receiver's directory is full")
		goesOn(t, to, from, false)
	})
}

// fullFile is a tree for which the disk is full from an offset on.
type fullFile struct {
	*claimed
	at int64
}

func (f *fullFile) WriteAt(b []byte, offset int64) (int, error) {
	if offset > f.at && f.s.file != nil {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		_ = f.s.file.Close()
		f.s.file = full
	}
	return f.claimed.WriteAt(b, offset)
}

// goesOn sends a tree again, to a receiver without troubles.
func goesOn(t *testing.T, to, from string, fresh bool) {
	t.Helper()
	d := must(OpenDir(t.Context(), to, keeping()))(t)
	t.Cleanup(func() { check(t, d.Close()) })
	res, err := serve(t, xfer.Receiver{Open: d.Open})(wished(t, from, 0))
	check(t, err)
	if (res.Kept > 0) == fresh {
		t.Errorf("%d bytes were there", res.Kept)
	}
	wantSame(t, from, filepath.Join(to, "photos"), true)
	wantOnly(t, to, "photos")
}

// beforeSmall begins to receive a tree of 40 small files, in the directory staged. data writes the files.
func beforeSmall(t *testing.T) (d *Dir, f xfer.File, staged string, data func() (int, error)) {
	t.Helper()
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(from, 0o755))
	for i := range 40 {
		check(t, os.WriteFile(filepath.Join(from, fmt.Sprintf("f%02d", i)), []byte("data"), 0o644))
	}
	d, to := openDir(t, all)
	src := scanDir(t, from, ScanOptions{Preserve: true}).Source()
	b := make([]byte, src.Size)
	must(src.Data.ReadAt(b, 0))(t)
	f = must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
	head := src.Choice.Head
	must(f.WriteAt(b[:head], 0))(t)
	return d, f, filepath.Join(to, f.(*claimed).s.temp, stagedName), func() (int, error) { return f.WriteAt(b[head:], head) }
}

// wantSmall compares the first n of the files.
func wantSmall(t *testing.T, staged string, n int) {
	t.Helper()
	for i := range n {
		name := fmt.Sprintf("f%02d", i)
		if got := must(os.ReadFile(filepath.Join(staged, name)))(t); string(got) != "data" {
			t.Errorf("%s has %q", name, got)
		}
	}
}

// descriptors returns the number of descriptors that the process has.
func descriptors(t *testing.T) int {
	t.Helper()
	return len(must(os.ReadDir("/proc/self/fd"))(t))
}

// leaveDescriptors lets the process open n more descriptors, until the function that it returns is called.
func leaveDescriptors(t *testing.T, n int) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	end := 0 // of the numbers that descriptors may have
	for ; n > 0; end++ {
		if _, err := unix.FcntlInt(uintptr(end), unix.F_GETFD, 0); err != nil {
			n--
		}
	}
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(end), Max: was.Max}))
	return func() { check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }
}

// If a file cannot be made, the error of the transfer names it. All files before it have their data, and no file stays open.
func TestSmallFileTaken(t *testing.T) {
	d, f, staged, data := beforeSmall(t)
	check(t, os.WriteFile(filepath.Join(staged, "f21"), nil, 0o600)) // as a file system does that takes two names for one
	open := descriptors(t)
	_, err := data()
	wantError(t, err, xfer.CodeName, `"f21": the receiver's file system takes the name for that of another entry`)
	if n := descriptors(t); n > open+1 { // 1 for the directory of the batch
		t.Errorf("%d descriptors are open, and %d were before", n, open)
	}
	wantSmall(t, staged, 21)
	check(t, f.Discard())
	wantReleased(t, d)
}

// Small files arrive although the process has few free descriptors, because goroutines that find none wait for those of the same batch.
func TestSmallFilesFewDescriptors(t *testing.T) {
	for free := 2; free <= 2*createAtOnce; free++ {
		d, f, staged, data := beforeSmall(t)
		open := descriptors(t)
		restore := leaveDescriptors(t, free)
		_, err := data()
		restore()
		if err != nil {
			t.Errorf("%d free descriptors: %v", free, err)
		}
		if n := descriptors(t); n > open+1 { // 1 for the directory of the batch
			t.Errorf("%d descriptors are open, and %d were before", n, open)
		}
		wantSmall(t, staged, 40)
		check(t, f.Discard())
		wantReleased(t, d)
	}
}
