package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/xfer"
)

// manySmall makes a tree of small files, of which some have other modes, no data, or are sparse, in more directories than a batch has.
func manySmall(t *testing.T, files int) (from string) {
	t.Helper()
	from = filepath.Join(t.TempDir(), "photos")
	for i := range files {
		dir := filepath.Join(from, fmt.Sprintf("d%d", i%(2*mostSmallDirs)), fmt.Sprintf("e%d", i%3))
		check(t, os.MkdirAll(dir, 0o755))
		at := filepath.Join(dir, fmt.Sprintf("f%04d", i))
		check(t, os.WriteFile(at, fmt.Appendf(nil, "%0*d", i%1500, i), 0o600))
		check(t, os.Chmod(at, []fs.FileMode{0o600, 0o644, 0o664, 0o444, 0o640}[i%5]))
		check(t, os.Chtimes(at, time.Time{}, time.Unix(int64(1e9+i), int64(i))))
	}
	return from
}

// Files of a tree that are smaller than a buffer arrive as others do, with their modes and times, whatever the sizes of the buffers.
//
// parity: X03
func TestSmallFiles(t *testing.T) {
	from := manySmall(t, 1000)
	for _, chunk := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, sync := range []bool{false, true} {
			opt := all
			opt.Sync = sync
			d, to := openDir(t, opt)
			src := scanDir(t, from, ScanOptions{Preserve: true}).Source()
			b := make([]byte, chunk)
			f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
			for at := int64(0); at < src.Size; at += int64(len(b)) {
				b = b[:min(int64(chunk), src.Size-at)]
				must(src.Data.ReadAt(b, at))(t)
				must(f.WriteAt(b, at))(t)
			}
			check(t, f.Commit())
			wantSame(t, from, filepath.Join(to, "photos"), true)
			wantReleased(t, d)
		}
	}
}

// A small file that is not as it was at the scan fails the transfer by its name, in whichever way it has changed.
func TestSmallFileChanges(t *testing.T) {
	if !hasSmall {
		return // TestChanged has the other way
	}
	for name, change := range map[string]func(at string) error{
		"shorter": func(at string) error { return os.Truncate(at, 10) },
		"longer":  func(at string) error { return os.Truncate(at, 2000) },
		"removed": os.Remove,
		"link": func(at string) error {
			return errors.Join(os.Rename(at, at+"x"), os.Symlink(filepath.Base(at)+"x", at))
		},
		"another": func(at string) error {
			return errors.Join(os.Remove(at), os.WriteFile(at, make([]byte, 1000), 0o644))
		},
		"directory": func(at string) error { return errors.Join(os.Remove(at), os.Mkdir(at, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			from := filepath.Join(t.TempDir(), "photos")
			check(t, os.MkdirAll(from, 0o755))
			for i := range 40 {
				check(t, os.WriteFile(filepath.Join(from, fmt.Sprintf("f%02d", i)), make([]byte, 1000), 0o644))
			}
			src := scanDir(t, from, ScanOptions{Preserve: true}).Source()
			check(t, change(filepath.Join(from, "f17")))
			_, err := src.Data.ReadAt(make([]byte, src.Size), 0)
			wantError(t, err, xfer.CodeChanged, `"f17" is not as it was`)
			n, err := src.Data.ReadAt(make([]byte, 1000), src.Size-40*1000)
			if n != 1000 || err != nil {
				t.Errorf("the first file cannot be read any more: %d bytes, %v", n, err)
			}
		})
	}
}

// A batch works on every file once, and returns the error of the first that fails, in the order of the files.
func TestShare(t *testing.T) {
	for _, n := range []int{0, 1, fewSmall, 1000} {
		var sum atomic.Int64
		share(n, smallWorkers, func(i int) bool {
			sum.Add(int64(i) + 1)
			return true
		})
		if want := int64(n) * int64(n+1) / 2; sum.Load() != want {
			t.Errorf("%d calls have the sum %d, and not %d", n, sum.Load(), want)
		}
	}
	var calls atomic.Int64
	share(1000, smallWorkers, func(int) bool {
		calls.Add(1)
		return false
	})
	if calls.Load() > smallWorkers {
		t.Errorf("%d calls after the first failure", calls.Load())
	}
}

// A sync that takes long counts as work, but not for ever.
func TestLongSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storing{}
		check(t, s.atWork(longestSync, func() error {
			time.Sleep(10 * time.Minute) //nolint:forbidigo // simulated time
			return nil
		}))
		if n := s.steps.Load(); n < 2900 {
			t.Errorf("%d steps in 10 minutes", n)
		}
		before := s.steps.Load()
		err := s.atWork(time.Minute, func() error {
			time.Sleep(time.Hour) //nolint:forbidigo // simulated time
			return errors.ErrUnsupported
		})
		if n := s.steps.Load() - before; n > 300 || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%d steps in an hour, of which one minute counts, and %v", n, err)
		}
	})
}
