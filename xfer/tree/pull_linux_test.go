package tree

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

var pullKills = flag.Int("pull-kills", 8, "how many processes TestKilledPulls kills")

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
		Open: func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) {
			return nil, xfer.CodeUnsupported
		},
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
	dir, err := OpenDir(context.Background(), args[1], keeping())
	if err != nil {
		return err
	}
	step := countdown(n[0])
	p := xfer.Puller{Choose: true, Wishes: xfer.Wishes(n[1]), Lanes: n[2], Chunk: 64 << 10, Window: 4,
		Open: func(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
			f, err := dir.Open(ctx, from, name, meta, size)
			if err != nil {
				return nil, err
			}
			return steppingFile{f.(xfer.Chooser), step}, nil
		}}
	_, err = p.Pull(context.Background(), dev, netip.MustParseAddrPort(args[4]), xfer.FileRequest{Op: xfer.RequestFile, Path: "photos"})
	return err
}

// A pull removes what the server does not have, unless the puller's user wants to keep it, and a dry run removes and stores nothing. The server has no part in it.
//
// parity: X02
func TestPullDelete(t *testing.T) {
	dev := must(iwarp.Open(iwarp.Config{}))(t)
	defer func() { check(t, dev.Close()) }()
	l := must(verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	defer func() { check(t, l.Close()) }()
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(filepath.Join(from, "a"), 0o755))
	check(t, os.WriteFile(filepath.Join(from, "a", "new"), []byte("new"), 0o600))
	d, to := openDir(t, keeping())
	for _, name := range []string{"photos/a/old", "photos/gone/x", "photos/kept"} {
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		check(t, os.WriteFile(filepath.Join(to, name), nil, 0o600))
	}
	var listed []string
	pull := func(wishes xfer.Wishes, open func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error)) (error, error) {
		listed = nil
		r := xfer.Receiver{Open: d.Open, Files: func(ctx context.Context, _ netip.AddrPort, _ xfer.FileRequest) (xfer.Source, io.Closer, error) {
			t, err := ScanDir(ctx, from, ScanOptions{Preserve: true})
			if err != nil {
				return xfer.Source{}, nil, err
			}
			src := t.Source()
			src.Choice.Remove = func(string, bool) bool { panic("the server is asked") }
			return src, t, nil
		}}
		served := make(chan error, 1)
		go func() {
			_, err := r.ServeOne(testContext(t), l)
			served <- err
		}()
		p := xfer.Puller{Open: open, Choose: true, Wishes: wishes, Remove: func(_ context.Context, path string, dir bool) bool {
			listed = append(listed, fmt.Sprint(path, " ", dir))
			return path != "kept"
		}}
		_, err := p.Pull(testContext(t), dev, l.Addr(), xfer.FileRequest{Op: xfer.RequestFile, Path: "photos"})
		return err, <-served
	}
	want := []string{"a/old false", "gone true", "gone/x false", "kept false"}
	before := snapshot(t, to, true)
	err, serr := pull(xfer.WishDelete|xfer.WishDryRun, d.Open)
	check(t, err)
	wantError(t, serr, xfer.CodeCanceled, "the puller has asked for the list of removals only")
	if slices.Sort(listed); !slices.Equal(listed, want) || compare(before, snapshot(t, to, true), "") != "" {
		t.Errorf("the dry run lists %q; the directory has %v", listed, snapshot(t, to, true))
	}
	err, serr = pull(xfer.WishDelete, d.Open)
	check(t, errors.Join(err, serr))
	if slices.Sort(listed); !slices.Equal(listed, want) {
		t.Errorf("the pull lists %q", listed)
	}
	var left []string
	for name := range snapshot(t, to, false) {
		left = append(left, name)
	}
	if slices.Sort(left); !slices.Equal(left, []string{".", "photos", "photos/a", "photos/a/new", "photos/kept"}) {
		t.Errorf("in the directory: %q", left)
	}
	opt := keeping()
	opt.AllowDelete = false
	other, _ := openDir(t, opt)
	err, _ = pull(xfer.WishDelete, other.Open)
	wantError(t, err, xfer.CodeUnsupported, "removes nothing")
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
				mutate(t, r, from)
			}
			wishes := []xfer.Wishes{0, xfer.WishUpdate, xfer.WishChecksum}[r.IntN(3)] | xfer.WishDelete
			rsync(t, from, ref, "--delete")
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
				if side == 2 && perr == nil && serr != nil {
					t.Errorf("seed %d: with no side killed, the pull succeeds, and the server got %v", seed, serr)
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
