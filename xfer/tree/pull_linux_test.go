package tree

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

var pullKills = flag.Int("pull-kills", 12, "how many processes TestKilledPulls kills")

// countdown returns a function that kills this process at its call of this number; 0: never.
func countdown(at int) func() {
	var n atomic.Int64
	return func() {
		if n.Add(1) == int64(at) {
			if err := troubles["kill"](""); err != nil {
				panic(err)
			}
			select {} // nothing more happens here
		}
	}
}

// servedVictim serves one tree to one puller, and kills itself at a step. Its arguments are the step and the directory.
func servedVictim(args []string) error {
	at, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	step := countdown(at)
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var served error
	r := xfer.Receiver{
		Open: func(string, xfer.Meta, int64) (xfer.File, error) { return nil, xfer.CodeUnsupported },
		Files: func(ctx context.Context, _ netip.AddrPort, _ xfer.FileRequest) (xfer.Source, io.Closer, error) {
			t, err := ScanDir(ctx, args[1], ScanOptions{Preserve: true})
			if err != nil {
				return xfer.Source{}, nil, err
			}
			return t.Source(), t, nil
		},
		Trace: func() xfer.Tracer { return func(xfer.Step) { step() } },
		Done:  func(_ xfer.Result, err error) { served = err; end() },
	}
	return errors.Join(r.Serve(ctx, l), served)
}

// steppingFile is the file of a puller that may kill itself at each call.
type steppingFile struct {
	xfer.Chooser
	step func()
}

func (f steppingFile) WriteAt(b []byte, offset int64) (int, error) {
	f.step()
	return f.Chooser.WriteAt(b, offset)
}

func (f steppingFile) Want() (xfer.Wanted, error) {
	f.step()
	return f.Chooser.Want()
}

func (f steppingFile) Sum(r xfer.Range, sum [xfer.SumLen]byte) error {
	f.step()
	return f.Chooser.Sum(r, sum)
}

func (f steppingFile) Commit() error {
	f.step()
	defer f.step()
	return f.Chooser.Commit()
}

// Steps implements [xfer.Worker].
func (f steppingFile) Steps() uint64 { return f.Chooser.(xfer.Worker).Steps() }

// pullVictim pulls a tree, and kills itself at a step. Its arguments are the step, the directory, the wishes, the number of lanes and the address.
func pullVictim(args []string) error {
	var n [3]int
	for i, at := range []int{0, 2, 3} {
		var err error
		if n[i], err = strconv.Atoi(args[at]); err != nil {
			return err
		}
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	dir, err := OpenDir(args[1], keeping())
	if err != nil {
		return err
	}
	step := countdown(n[0])
	p := xfer.Puller{Choose: true, Wishes: xfer.Wishes(n[1]), Lanes: n[2], Chunk: 64 << 10, Window: 4,
		Open: func(name string, meta xfer.Meta, size int64) (xfer.File, error) {
			f, err := dir.Open(name, meta, size)
			if err != nil {
				return nil, err
			}
			return steppingFile{f.(xfer.Chooser), step}, nil
		}}
	_, err = p.Pull(context.Background(), dev, netip.MustParseAddrPort(args[4]), xfer.FileRequest{Op: xfer.RequestFile, Path: "photos"})
	return err
}

// rewrite gives some files of a tree other data of the same size, and a new time.
func rewrite(t *testing.T, r *rand.Rand, path string) {
	t.Helper()
	check(t, filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || r.IntN(3) > 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b := make([]byte, min(info.Size(), 1<<20))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if err := os.Chmod(p, 0o600); err != nil {
			return err
		}
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b, (info.Size()-int64(len(b)))/2)
		when := info.ModTime().Add(time.Second)
		return errors.Join(err, f.Close(), os.Chmod(p, info.Mode().Perm()), os.Chtimes(p, when, when))
	}))
}

// Random trees are pulled, with one lane or several, although the puller or the server is killed again and again: each further pull goes on, and the result is that of rsync.
//
// parity: X02
func TestKilledPulls(t *testing.T) {
	needsLocks(t)
	killed := 0
	for seed := uint64(0); killed < *pullKills; seed++ {
		r := rand.New(rand.NewPCG(seed, 8))
		from, to, ref := filepath.Join(t.TempDir(), "photos"), t.TempDir(), t.TempDir()
		randomTree(t, r, from)
		lanes := 1 + r.IntN(4)
		if lanes > 1 { // one lane carries 4 MiB at least
			b := make([]byte, lanes*4<<20+r.IntN(3<<20))
			_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(b) // never fails
			check(t, os.WriteFile(filepath.Join(from, "big"), b, 0o600))
		}
		for round := range 2 {
			if round > 0 {
				rewrite(t, r, from)
			}
			wishes := []xfer.Wishes{0, xfer.WishUpdate, xfer.WishChecksum}[r.IntN(3)]
			rsync(t, from, ref)
			for try := 0; ; try++ {
				side := r.IntN(3)
				if try == 6 {
					side = 2
				}
				at := [3]int{}
				at[side] = 1 + r.IntN(60)<<r.IntN(5)
				server := testproc.Start(t, testproc.Command{Role: "served", Args: []string{strconv.Itoa(at[0]), from}})
				addr := server.Stdout.Expect(`^\S+$`)[0]
				puller := testproc.Start(t, testproc.Command{Role: "puller", Args: []string{strconv.Itoa(at[1]), to, strconv.Itoa(int(wishes)), strconv.Itoa(lanes), addr}})
				perr := puller.Wait()
				serr := server.Wait()
				for _, p := range []*testproc.Process{puller, server} {
					if p.WasKilled() {
						killed++
					}
				}
				if perr == nil {
					break
				}
				if side == 2 {
					t.Fatalf("seed %d: with no side killed, the puller got %v, and the server %v", seed, perr, serr)
				}
				for _, e := range must(os.ReadDir(to))(t) {
					if e.Name() != "photos" && e.Name() != partialName("photos") {
						t.Errorf("%s is left behind", e.Name())
					}
				}
			}
			wantSame(t, ref, filepath.Join(to, "photos"), true)
			wantOnly(t, to, "photos")
		}
	}
	t.Logf("%d processes were killed", killed)
}
