package tree

import (
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
		open := func(name string, meta xfer.Meta, size int64) (xfer.File, error) {
			f, err := d.Open(name, meta, size)
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
	d := must(OpenDir(to, keeping()))(t)
	t.Cleanup(func() { check(t, d.Close()) })
	res, err := serve(t, xfer.Receiver{Open: d.Open})(wished(t, from, 0))
	check(t, err)
	if (res.Kept > 0) == fresh {
		t.Errorf("%d bytes were there", res.Kept)
	}
	wantSame(t, from, filepath.Join(to, "photos"), true)
	wantOnly(t, to, "photos")
}
