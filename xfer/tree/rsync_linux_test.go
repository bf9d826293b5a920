package tree

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

var (
	rsyncTrees = flag.Int("rsync-trees", 40, "how many random trees TestLikeRsync compares")
	kills      = flag.Int("kills", 24, "how many processes TestKilledTransfers kills")
)

// rsync mirrors a directory, with everything that crosses here too, and compares the nanoseconds of times.
func rsync(t *testing.T, from, to string, more ...string) {
	t.Helper()
	path, err := exec.LookPath("rsync")
	if err != nil {
		t.Skip("rsync is not installed (Debian's package rsync)")
	}
	args := append([]string{"-a", "-H", "-S", "--no-owner", "--no-group", "--modify-window=-1"}, more...)
	if out, err := exec.CommandContext(t.Context(), path, append(args, from+"/", to+"/")...).CombinedOutput(); err != nil {
		t.Fatalf("rsync: %v\n%s", err, out)
	}
}

// Random trees and their changes arrive as rsync copies them: new, over an older state, by size and time or by contents, with and without the removal of
// what the sender has no more, and whether or not the transfer is cut before.
//
// parity: X02
func TestLikeRsync(t *testing.T) {
	needsLocks(t)
	cuts := 0
	for seed := range uint64(*rsyncTrees) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			from, ref := filepath.Join(t.TempDir(), "photos"), t.TempDir()
			randomTree(t, r, from)
			d, to := openDir(t, keeping())
			at := filepath.Join(to, "photos")
			for round := range 3 {
				if round > 0 {
					mutate(t, r, from)
				}
				wishes, args := xfer.WishDelete, []string{"--delete"}
				switch r.IntN(3) {
				case 0:
					wishes |= xfer.WishUpdate
				case 1:
					wishes, args = wishes|xfer.WishChecksum, append(args, "--checksum")
				}
				rsync(t, from, ref, args...)
				for {
					src, limit := wished(t, from, wishes), int64(-1)
					if r.IntN(2) == 0 {
						limit = r.Int64N(src.Size)
					}
					_, err := storeChosen(d.Open, src, 1+r.IntN(20_000), limit)
					if err == nil {
						break
					}
					if cuts++; !errors.Is(err, errCut) {
						t.Fatal(err)
					}
				}
				wantSame(t, ref, at, true)
				wantSame(t, from, at, true)
				wantOnly(t, to, "photos")
			}
		})
	}
	t.Logf("%d transfers were cut", cuts)
}

// init turns the process into a side of a transfer before any test can run.
func init() {
	testproc.Main(map[string]func([]string) error{"victim": victim, "served": servedVictim, "puller": pullVictim})
}

// victim is one side of a transfer that kills itself at a step, 0: never. Its arguments are the side, the step, the directory, for a receiver another trouble than to
// be killed, and for a sender the wishes and the address.
func victim(args []string) error {
	at, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	step, trouble := 0, "kill"
	if args[0] == "receiver" && len(args) > 3 {
		trouble = args[3]
	}
	trace := func() xfer.Tracer {
		return func(xfer.Step) {
			if step++; step == at {
				if err := troubles[trouble](args[2]); err != nil {
					panic(err)
				}
				if trouble == "kill" {
					select {} // nothing more happens here
				}
			}
		}
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if args[0] == "receiver" {
		l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			return err
		}
		dir, err := OpenDir(context.Background(), args[2], keeping())
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		r := xfer.Receiver{Open: dir.Open, Trace: trace}
		_, err = r.ServeOne(ctx, l)
		return err
	}
	wishes, err := strconv.ParseUint(args[3], 10, 32)
	if err != nil {
		return err
	}
	t, err := ScanDir(ctx, args[2], ScanOptions{Preserve: true})
	if err != nil {
		return err
	}
	src := t.Source()
	src.Choice.Wishes = xfer.Wishes(wishes)
	s := xfer.Sender{Protocol: xfer.Fast, Chunk: 4 << 10, Window: 4, Trace: trace}
	_, err = s.Send(ctx, dev, netip.MustParseAddrPort(args[4]), src)
	return err
}

// Random trees cross although one side or the other is killed again and again: each further transfer goes on, and the result is that of rsync.
//
// parity: X02 Y09
func TestKilledTransfers(t *testing.T) {
	needsLocks(t)
	killed := 0
	for seed := uint64(0); killed < *kills; seed++ {
		r := rand.New(rand.NewPCG(seed, 6))
		from, to, ref := filepath.Join(t.TempDir(), "photos"), t.TempDir(), t.TempDir()
		randomTree(t, r, from)
		for round := range 2 {
			if round > 0 {
				mutate(t, r, from)
			}
			wishes := []xfer.Wishes{0, xfer.WishUpdate, xfer.WishChecksum}[r.IntN(3)] | xfer.WishDelete
			rsync(t, from, ref, "--delete")
			for try := 0; ; try++ {
				side, step := r.IntN(3), 1+r.IntN(60)<<r.IntN(4)
				if try == 6 {
					side = 2
				}
				at := [3]int{}
				at[side] = max(step, 2) // at step 1 a sender is not connected yet
				server := testproc.Start(t, testproc.Command{Role: "victim", Args: []string{"receiver", strconv.Itoa(at[0]), to}})
				addr := server.Stdout.Expect(`^\S+$`)[0]
				client := testproc.Start(t, testproc.Command{Role: "victim", Args: []string{"sender", strconv.Itoa(at[1]), from, strconv.FormatUint(uint64(wishes), 10), addr}})
				cerr, serr := client.Wait(), server.Wait()
				for _, p := range []*testproc.Process{client, server} {
					if p.WasKilled() {
						killed++
					}
				}
				if cerr == nil && serr == nil {
					break
				}
				if side == 2 {
					t.Fatalf("seed %d: with no side killed, the sender got %v, and the receiver %v", seed, cerr, serr)
				}
				for _, e := range must(os.ReadDir(to))(t) {
					if e.Name() != "photos" && e.Name() != partialName("photos") && !strings.HasPrefix(e.Name(), tempPrefix) {
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
