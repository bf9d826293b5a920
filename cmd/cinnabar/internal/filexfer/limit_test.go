package filexfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

func TestParseLimit(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64
	}{
		{"", 0}, {"100MB/s", 100_000_000}, {"100MB", 100_000_000}, {"1MiB/s", 1 << 20}, {"4KiB/s", 4096}, {"5000", 5000}, {" 1 GB/s ", 1_000_000_000},
	} {
		o := limitOption{text: tt.text}
		if err := o.parse(30 * time.Second); err != nil || o.rate != tt.want {
			t.Errorf("%q: %d, %v, want %d", tt.text, o.rate, err, tt.want)
		}
	}
	for _, tt := range []struct {
		text    string
		timeout time.Duration
		want    []string
	}{
		{"0", time.Minute, []string{"--limit", "4.0 KiB/s", "100MB/s"}},
		{"-1MB/s", time.Minute, []string{"--limit"}},
		{"fast", time.Minute, []string{"--limit", `"fast"`}},
		{"100Mbit/s", time.Minute, []string{"100Mbit/s", "8 bits are a byte"}},
		{"4KiB/s", time.Second, []string{"--limit 4KiB/s", "--timeout 1s", "raise one of them"}},
	} {
		o := limitOption{text: tt.text}
		clitest.WantError(t, o.parse(tt.timeout), tt.want...)
	}
	o := limitOption{text: "1MiB/s", rate: 1 << 20}
	clitest.WantError(t, o.checkChunk(10<<20, 30*time.Second), "--chunk", "10s", "--limit 1MiB/s", "leave --chunk out")
	if err := o.checkChunk(1<<20, 30*time.Second); err != nil {
		t.Error(err)
	}
}

// A limited transfer moves several chunks a second, so that neither side takes it for dead.
func TestLimitedChunk(t *testing.T) {
	for _, tt := range []struct{ rate, want int64 }{{0, 512 << 10}, {1 << 30, 512 << 10}, {1 << 20, 128 << 10}, {4 << 10, 4 << 10}, {100_000, 12288}} {
		o := limitOption{rate: tt.rate}
		if got := o.chunk(512 << 10); got != tt.want {
			t.Errorf("at %d bytes per second: chunks of %d bytes, want %d", tt.rate, got, tt.want)
		}
	}
}

func TestBucket(t *testing.T) {
	b := newBucket(1000)
	now := time.Unix(1_000_000_000, 0)
	b.now = func() time.Time { return now }
	for i, want := range []time.Duration{-burst, -burst + 100*time.Millisecond, 200*time.Millisecond - burst, 1200*time.Millisecond - burst} {
		n := 100
		if i == 2 {
			n = 1000
		}
		if got := b.reserve(n); got != want {
			t.Errorf("taker %d waits %v, want %v", i, got, want)
		}
	}
	now = now.Add(time.Hour) // of which the bucket makes up for an eighth of a second
	if got := b.reserve(1000); got != -burst {
		t.Errorf("after a pause the first waits %v", got)
	}
	if got := b.reserve(1); got != time.Second-burst {
		t.Errorf("after a pause the second waits %v", got)
	}
	if err := (*bucket)(nil).take(t.Context(), 1<<30); err != nil || newBucket(0) != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// A taker that waits ends with the transfer, and none waits after that.
func TestBucketStops(t *testing.T) {
	b := newBucket(leastRate)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if err := b.take(ctx, leastRate*3600); err != nil { // at once, since the bucket was full
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.take(ctx, 1) }()
	stop()
	if err := <-ended; !errors.Is(err, xfer.CodeCanceled) {
		t.Errorf("%v", err)
	}
	if _, err := limitSource(ctx, xfer.Source{Data: bytes.NewReader(nil)}, b).Data.ReadAt(make([]byte, 1), 0); !errors.Is(err, xfer.CodeCanceled) {
		t.Errorf("%v", err)
	}
}

// Either end limits the transfer.
func TestLimitOption(t *testing.T) {
	const size, rate = 300_000, 1_000_000
	path := randomFiles(t, size)[0]
	for _, side := range []string{"send", "recv"} {
		t.Run(side, func(t *testing.T) {
			send, recv := []string{"send", "--json", path}, []string{"--once"}
			if limit := []string{"--limit", "1MB/s"}; side == "send" {
				send = append(send, limit...)
			} else {
				recv = append(recv, limit...)
			}
			server := startRecv(t, "127.0.0.1:0", recv...)
			code, client := clitest.RunProcess(t, append(send, server.addr)...)
			if code != 0 || server.ExitCode() != 0 {
				t.Fatalf("exit code %d: %s; %s", code, client.Stderr, server.Stderr)
			}
			server.sameFile(t, path)
			var e transferEvent
			lines := strings.Split(strings.TrimSpace(client.Stdout.String()), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil {
				t.Fatal(err)
			}
			// The first chunk and a burst pass at once, and the receiver's last chunk is not waited for.
			if least := (timeFor(size-2*(rate/chunksPerSecond), rate)).Seconds(); e.Seconds < least || e.Chunk > rate/chunksPerSecond {
				t.Errorf("%d bytes in chunks of %d took %.3f s, want %.3f s at the least", e.Bytes, e.Chunk, e.Seconds, least)
			}
		})
	}
}

// Programs get a line each second, and ^C ends a transfer that waits for its limit.
func TestProgressJSON(t *testing.T) {
	server := startRecv(t, "127.0.0.1:0")
	client := clitest.Start(t, "send", "--json", "--limit", "64KiB/s", clitest.EndlessFile(t), server.addr)
	var e progressEvent
	if err := json.Unmarshal([]byte(client.Stdout.Expect(`^\{"event":"progress".*$`)[0]), &e); err != nil {
		t.Fatal(err)
	}
	if e.Name != "endless" || e.Peer != server.addr || e.Size <= 0 || e.Seconds <= 0 {
		t.Errorf("%+v", e)
	}
	client.Interrupt()
	if code := client.ExitCode(); code != cli.ExitSignal+2 {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if last := client.Stdout.Expect(`"event":"failed".*`)[0]; !strings.Contains(last, `"code":"cancelled"`) {
		t.Errorf("the last line is %s", last)
	}
	server.interrupt(t)
}

// The lines about a transfer say how fast it is, how long it takes, and that it has stalled.
func TestMeter(t *testing.T) {
	var o clitest.Output
	r, c := sampleReporter(sendWords, true, &o)
	r.outlook = &outlook{tree: places{{Path: "2026/a\x1b.raw", Done: 1, Size: 2}}}
	unknown := sampleBasic
	unknown.Size, unknown.Name = -1, "stream"
	for _, res := range []xfer.Result{sampleFast, unknown} {
		p := r.watch()
		p.Start(res)
		for range 4 {
			p.Advance(1 << 20)
			c.Time = c.Add(time.Second)
			r.look()
		}
		for range 3 {
			c.Time = c.Add(4 * time.Second)
			r.look()
		}
		p.Finish(res, nil)
		r.look()
	}
	clitest.Golden(t, "progress.golden", "standard error:\n"+o.Err.String()+"standard output:\n"+o.Out.String())
}

// The goroutine that looks at the transfers lives while there are any.
func TestLooksEnd(t *testing.T) {
	var o clitest.Output
	r := newReporter(t.Context(), sendWords, false, o.Streams())
	for range 2 {
		p, q := r.watch(), r.watch()
		p.Start(sampleFast)
		q.Start(sampleFast)
		p.Finish(sampleFast, nil)
		r.mu.Lock()
		if r.endLooks == nil {
			t.Error("no goroutine looks at the transfer under way")
		}
		r.mu.Unlock()
		q.Finish(sampleFast, nil)
		r.mu.Lock()
		if r.endLooks != nil || len(r.meters) != 0 {
			t.Error("a goroutine looks at no transfer")
		}
		r.mu.Unlock()
	}
}

// places are the files of a tree that are being read.
type places []tree.Place

func (p places) Reading() (tree.Place, bool) { return p[0], true }
func (p places) Active() []tree.Place        { return p }

func TestOutlookLines(t *testing.T) {
	o := &outlook{files: 3, size: 4 << 20}
	o.done.Store(1 << 20)
	o.ended.Store(1)
	o.tree = places{{Path: "a/\x1b[2J"}, {Path: "b", Done: 1 << 10, Size: 4 << 10}}
	want := "  a/?[2J 0 B / 0 B [====================] 100 %\n  b 1.0 KiB / 4.0 KiB [=====---------------] 25 %\nall files, 2 of 3 1.0 MiB / 4.0 MiB [=====---------------] 25 %"
	if got := strings.Join(o.lines(100), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, line := range o.lines(10) {
		if len(line) > 10 {
			t.Errorf("%q is longer than the terminal is wide", line)
		}
	}
	path := clitest.WriteTemp(t, "b", make([]byte, 1<<10))
	o.finish(1<<20, path)
	o.finish(1<<20+1<<10, filepath.Join(t.TempDir(), "gone"))
	if o.bytes() != 1<<20+1<<10 || o.ended.Load() != 3 {
		t.Errorf("%d bytes, %d files", o.bytes(), o.ended.Load())
	}
	if lines := (&outlook{}).lines(80); len(lines) > 0 || (*outlook)(nil).filler() != nil {
		t.Errorf("one file has the lines %q", lines)
	}
}

// A transfer that was cut goes on where it stopped when either end limits it.
//
// parity: X02
func TestLimitedResume(t *testing.T) {
	needsLocks(t)
	path := randomFiles(t, 32<<20)[0]
	for _, side := range []string{"send", "recv"} {
		t.Run(side, func(t *testing.T) {
			limit := []string{"--limit", "8MiB/s"}
			send, recv := []string{"send", "--json", path}, []string{"--overwrite"}
			if side == "send" {
				send = append(send, limit...)
			} else {
				recv = append(recv, limit...)
			}
			p := startRecv(t, "127.0.0.1:0", recv...)
			send = append(send, p.addr)
			client := clitest.Start(t, send...)
			client.Stdout.Expect(`"event":"progress".*"bytes":([5-9]|[1-9]\d)\d{6},`) // more than a block that has a sum
			client.Kill()
			_ = client.Wait() // it was killed
			for {             // the receiver may not have noticed yet
				code, again := clitest.RunProcess(t, send...)
				if code == 0 {
					var e transferEvent
					lines := strings.Split(strings.TrimSpace(again.Stdout.String()), "\n")
					if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil || e.Kept < 4<<20 {
						t.Errorf("%d bytes were there, %v: %s", e.Kept, err, again.Stdout)
					}
					break
				}
				if !strings.Contains(again.Stderr.String(), "is being received right now") {
					t.Fatalf("exit code %d: %s", code, again.Stderr)
				}
			}
			p.sameFile(t, path)
			p.interrupt(t)
		})
	}
}

// workingFile is a file that chooses and works.
type workingFile struct{ xfer.Chooser }

func (workingFile) Steps() uint64 { return 7 }

// The limit hides no method of a file, and gives none to a file that chooses nothing.
func TestLimitedFileChooses(t *testing.T) {
	b := newBucket(leastRate)
	dir, err := tree.OpenDir(t.Context(), t.TempDir(), tree.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Shut(dir) })
	for _, made := range []xfer.File{workingFile{}, &outputFile{}} {
		f, err := b.files(func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) { return made, nil })(t.Context(), netip.AddrPort{}, "a", xfer.Meta{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, chooses := f.(xfer.Chooser)
		_, want := made.(xfer.Chooser)
		if chooses != want {
			t.Errorf("%T: it chooses: %t", made, chooses)
		}
		steps := uint64(0)
		if want {
			steps = 7
		}
		if w, ok := f.(xfer.Worker); !ok || w.Steps() != steps {
			t.Errorf("%T: its work is hidden", made)
		}
	}
	f, err := b.files(dir.Open)(t.Context(), netip.AddrPort{}, "a", xfer.Meta{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := f.(xfer.Chooser); !ok {
		t.Error("a file of a directory does not choose")
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
}

// Sums do not cross, so the limit is not for what they are computed from.
func TestLimitedSums(t *testing.T) {
	data, choice := strings.NewReader("data"), &xfer.Choice{Head: 1}
	src := limitSource(t.Context(), xfer.Source{Data: data, Size: 4, Choice: choice}, newBucket(leastRate))
	if src.Choice.SumData != data || src.Choice.Head != 1 || choice.SumData != nil {
		t.Errorf("got %+v", src.Choice)
	}
	if src.Data == data {
		t.Error("the data has no limit")
	}
	if src = limitSource(t.Context(), xfer.Source{Data: data, Size: 4}, newBucket(leastRate)); src.Choice != nil {
		t.Error("the limit lets the receiver choose")
	}
}
