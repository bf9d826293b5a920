package xfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest/memdev"
)

// blocking makes files of which one method, or Open, blocks until the file's context ends.
type blocking struct {
	method  string
	entered chan struct{}
	once    sync.Once
	calls   atomic.Int32 // that block now
	made    atomic.Pointer[blockingFile]
	cause   atomic.Pointer[error] // why the context has ended
}

func newBlocking(method string) *blocking {
	return &blocking{method: method, entered: make(chan struct{})}
}

// at blocks until ctx ends, if the method is the one that blocks.
func (b *blocking) at(ctx context.Context, method string) error {
	if method != b.method {
		return nil
	}
	b.calls.Add(1)
	defer b.calls.Add(-1)
	b.once.Do(func() { close(b.entered) })
	<-ctx.Done()
	cause := context.Cause(ctx)
	b.cause.Store(&cause)
	return fmt.Errorf("the storage does not answer: %w", ctx.Err())
}

func (b *blocking) open(ctx context.Context, _ netip.AddrPort, _ string, _ Meta, _ int64) (File, error) {
	f := &blockingFile{memFile: &memFile{disk: instant}, ctx: ctx, b: b}
	b.made.Store(f)
	if err := b.at(ctx, "Open"); err != nil {
		return nil, err
	}
	return f, nil
}

// wait waits until the method blocks.
func (b *blocking) wait(t testing.TB) {
	t.Helper()
	select {
	case <-b.entered:
	case <-testContext(t).Done():
		t.Fatalf("%s was not called", b.method)
	}
}

// check checks that the context has ended for a reason of the class, that nothing blocks any more, and that the file was not stored.
func (b *blocking) check(t testing.TB, code Code) {
	t.Helper()
	cause := b.cause.Load()
	if cause == nil {
		t.Fatalf("%s did not return", b.method)
	}
	if code != CodeCanceled && !errors.Is(*cause, code) {
		t.Errorf("the context has ended because of %v, want %v", *cause, code)
	}
	f := b.made.Load()
	if n := b.calls.Load(); n != 0 || f.committed || f.ctx.Err() == nil {
		t.Errorf("%d calls block, committed: %v, context: %v", n, f.committed, f.ctx.Err())
	}
	if f.discarded != (b.method != "Open") {
		t.Errorf("discarded: %v", f.discarded)
	}
}

// blockingFile is a file in memory of which one method may block.
type blockingFile struct {
	*memFile
	ctx context.Context // of Open
	b   *blocking
}

func (f *blockingFile) AnyOrder() bool { return true }

func (f *blockingFile) WriteAt(b []byte, offset int64) (int, error) {
	if err := f.b.at(f.ctx, "WriteAt"); err != nil {
		return 0, err
	}
	return f.memFile.WriteAt(b, offset)
}

func (f *blockingFile) Commit() error {
	if err := f.b.at(f.ctx, "Commit"); err != nil {
		return err
	}
	return f.memFile.Commit()
}

// A file's context ends with its transfer, whoever ends that and whatever the file does then, and the reason of the transfer is that of its end.
func TestContextOfFile(t *testing.T) {
	for _, method := range []string{"Open", "WriteAt", "Commit"} {
		for _, p := range []Protocol{Basic, Fast} {
			for _, lanes := range []int{1, 3} {
				if lanes > 1 && (p == Basic || method == "Open") {
					continue
				}
				for end, c := range map[string]struct {
					do   func(srv *server, cancel func())
					code Code // of the receiver
				}{
					"receiver ends":   {do: func(srv *server, _ func()) { srv.cancel() }, code: CodeCanceled},
					"sender gives up": {do: func(_ *server, cancel func()) { cancel() }, code: CodeCanceled},
					"timeout":         {do: func(*server, func()) {}, code: CodeTimeout},
				} {
					t.Run(fmt.Sprintf("%s, %v, %d lanes, %s", method, p, lanes, end), func(t *testing.T) {
						inMemory(t, func(t *testing.T, dev *verbs.Device) {
							b := newBlocking(method)
							srv := serve(t, dev, Receiver{Open: b.open}, DirOptions{})
							ctx, cancel := context.WithCancel(t.Context())
							defer cancel()
							src := sourceOf("f", noise(lanes*(5<<20)))
							if lanes > 1 {
								src.Choice = &Choice{}
							}
							sent := make(chan error, 1)
							go func() {
								_, err := (&Sender{Protocol: p, Lanes: lanes, Timeout: time.Hour}).Send(ctx, dev, srv.addr, src)
								sent <- err
							}()
							<-b.entered
							c.do(srv, cancel)
							_, err := srv.outcome(t.Context())
							code := c.code
							if end == "sender gives up" && (method == "Commit" || p == Basic) {
								code = CodeLost // because a message of the sender has no effect on a commit, and the basic protocol has none while the buffer is the receiver's
							}
							e, ok := errors.AsType[*Error](err)
							if !ok || e.Code != code {
								t.Errorf("got %v, want %v", err, code)
							}
							if <-sent == nil {
								t.Error("the sender has succeeded")
							}
							b.check(t, code)
							srv.stop()
						})
					})
				}
			}
		}
	}
}

// inMemory runs a test with a device in memory and simulated time.
func inMemory(t *testing.T, do func(*testing.T, *verbs.Device)) {
	synctest.Test(t, func(t *testing.T) {
		dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		do(t, dev)
	})
}

// A sender that vanishes without a word, as one that is killed does, ends the context of its file.
func TestContextOfFileOfKilledSender(t *testing.T) {
	data := noise(minChunk)
	for _, method := range []string{"Open", "WriteAt", "Commit"} {
		t.Run(method, func(t *testing.T) {
			b := newBlocking(method)
			srv := serve(t, device(t, iwarp.Config{}), Receiver{Open: b.open}, DirOptions{})
			p := dialRaw(t, srv.addr, appendHello(nil, hello{fast: true, digest: NoDigest, size: minChunk, chunk: minChunk, buffers: 1}))
			p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}))
			if method != "Open" {
				m := p.fast(fastLayout)
				p.write(verbs.RemoteAddr{Addr: m.number, RKey: m.word}, data)
				p.send(appendFast(nil, fastMessage{kind: fastChunk, length: minChunk, word: crcOf(data)}))
			}
			if method == "Commit" {
				p.send(appendFast(nil, fastMessage{kind: fastEnd, number: minChunk}))
			}
			b.wait(t)
			if err := p.qp.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := srv.outcome(testContext(t))
			wantCode(t, err, CodeLost, false)
			b.check(t, CodeLost)
			srv.stop()
		})
	}
}

// The context of a file that is complete ends too, for a reason that says so.
func TestContextOfStoredFile(t *testing.T) {
	b := newBlocking("")
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Open: b.open}, DirOptions{})
	if _, err := (&Sender{}).Send(testContext(t), device(t, iwarp.Config{}), srv.addr, sourceOf("f", noise(10))); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.outcome(testContext(t)); err != nil {
		t.Fatal(err)
	}
	f := b.made.Load()
	if !f.committed || f.ctx.Err() == nil || !strings.Contains(context.Cause(f.ctx).Error(), "the transfer is complete") {
		t.Errorf("committed: %v, the reason is %v", f.committed, context.Cause(f.ctx))
	}
}

// The context of a pull's file, and that of Remove, end with the pull.
func TestContextOfPulledFile(t *testing.T) {
	for _, method := range []string{"Open", "WriteAt", "Commit", "Remove"} {
		for end, c := range map[string]struct {
			do   func(srv *server, cancel func())
			code Code
		}{
			"puller ends": {do: func(_ *server, cancel func()) { cancel() }, code: CodeCanceled},
			"server ends": {do: func(srv *server, _ func()) { srv.cancel() }, code: CodeCanceled},
			"timeout":     {do: func(*server, func()) {}, code: CodeTimeout},
		} {
			t.Run(method+", "+end, func(t *testing.T) {
				inMemory(t, func(t *testing.T, dev *verbs.Device) {
					b := newBlocking(method)
					srv := serve(t, dev, Receiver{Timeout: time.Hour, Files: served(chosenOf(noise(5<<20), 0))}, DirOptions{})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					p := Puller{Open: b.open, Choose: true}
					if method == "Remove" {
						p.Wishes = WishDelete
						p.Open = func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
							f, err := b.open(ctx, from, name, meta, size)
							return &removingFile{blockingFile: f.(*blockingFile)}, err
						}
						p.Remove = func(ctx context.Context, _ string, _ bool) bool { return b.at(ctx, "Remove") == nil }
					}
					pulled := make(chan error, 1)
					go func() {
						_, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"})
						pulled <- err
					}()
					<-b.entered
					c.do(srv, cancel)
					err := <-pulled
					code := c.code
					if method == "Commit" && end == "server ends" {
						code = CodeLost
					}
					if e, ok := errors.AsType[*Error](err); !ok || e.Code != code {
						t.Errorf("got %v, want %v", err, code)
					}
					b.check(t, code)
					if _, err := srv.outcome(t.Context()); err == nil {
						t.Error("the server has succeeded")
					}
				})
			})
		}
	}
}

// removingFile wants to remove an entry.
type removingFile struct {
	*blockingFile
	everything
	listed bool
}

func (f *removingFile) WriteAt(b []byte, offset int64) (int, error) {
	return f.blockingFile.WriteAt(b, offset)
}
func (f *removingFile) Commit() error  { return f.blockingFile.Commit() }
func (f *removingFile) Discard() error { return f.blockingFile.Discard() }

func (f *removingFile) Choose(o Offer) error {
	f.offer = o
	return nil
}

func (f *removingFile) Want() (Wanted, error) {
	if !f.listed {
		f.listed = true
		return Wanted{Removals: []Removal{{Name: "old"}}}, nil
	}
	return f.everything.Want()
}

// The source of a pull may use the context of Files for its reads.
func TestContextOfSource(t *testing.T) {
	entered := make(chan struct{})
	var once sync.Once
	files := func(ctx context.Context, _ netip.AddrPort, _ FileRequest) (Source, io.Closer, error) {
		src := sourceOf("f", noise(10))
		src.Data = readerFunc(func([]byte, int64) (int, error) {
			once.Do(func() { close(entered) })
			<-ctx.Done()
			return 0, ctx.Err()
		})
		return src, nil, nil
	}
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Files: files}, DirOptions{})
	p, _ := into(t, DirOptions{})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	go func() {
		<-entered
		cancel()
	}()
	_, err := p.Pull(ctx, device(t, iwarp.Config{}), srv.addr, FileRequest{RequestFile, "f"})
	wantCode(t, err, CodeCanceled, false)
	_, err = srv.outcome(testContext(t))
	wantCode(t, err, CodeCanceled, true)
}

// readerFunc is a function as an io.ReaderAt.
type readerFunc func([]byte, int64) (int, error)

func (f readerFunc) ReadAt(b []byte, offset int64) (int, error) { return f(b, offset) }

// A sender whose file is being made keeps no other one of ServeFirst: the other may give up while it waits for its turn, and is served if the first one fails.
func TestServeFirstOpensInTurn(t *testing.T) {
	inMemory(t, func(t *testing.T, dev *verbs.Device) {
		l := must(verbs.Listen(dev, loopback))(t)
		b, file := newBlocking("Open"), &memFile{disk: instant}
		ended := serveFirst(t.Context(), l, Receiver{Open: func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
			if name == "slow" {
				return b.open(ctx, from, name, meta, size)
			}
			return file, nil
		}})
		send := func(name string) (ended chan error, cancel func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended = make(chan error, 1)
			go func() {
				_, err := (&Sender{}).Send(ctx, dev, l.Addr(), sourceOf(name, noise(10)))
				ended <- err
			}()
			synctest.Wait()
			return ended, cancel
		}
		slow, cancelSlow := send("slow")
		waiting, cancelWaiting := send("waiting")
		cancelWaiting()
		wantCode(t, <-waiting, CodeCanceled, false)
		last, cancelLast := send("last")
		defer cancelLast()
		cancelSlow()
		wantCode(t, <-slow, CodeCanceled, false)
		if err := <-last; err != nil {
			t.Error(err)
		}
		got := <-ended
		if got.err != nil || got.res.Name != "last" || !file.committed {
			t.Errorf("got %+v, %v", got.res, got.err)
		}
		if len(got.others) != 2 {
			t.Fatalf("Done got %v", got.others)
		}
		for _, err := range got.others {
			wantCode(t, err, CodeCanceled, true)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A Dir stops long work: the look for the files of killed receivers when the context of OpenDir ends, or when the Dir is closed, and the comparison of a part when the context of the
// transfer ends. The look does not end with the transfer that has begun it.
func TestDirEndsWork(t *testing.T) {
	needsLocks(t)
	path := t.TempDir()
	why := errors.New("the transfer has ended")
	ended, end := context.WithCancelCause(t.Context())
	end(why)
	stale := filepath.Join(path, tempPrefix+"0000000000000001"+tempSuffix)
	long := time.Now().Add(-2 * staleAfter)
	plant := func() {
		t.Helper()
		if err := errors.Join(os.WriteFile(stale, []byte("x"), 0o600), os.Chtimes(stale, long, long)); err != nil {
			t.Fatal(err)
		}
	}
	plant()
	if _, err := OpenDir(ended, path, DirOptions{}); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	d := must(OpenDir(t.Context(), path, DirOptions{KeepFor: time.Hour}))(t)
	defer func() { _ = d.Close() }()
	if got := entries(t, path); len(got) != 0 {
		t.Errorf("the directory has %q", got)
	}
	plant()
	d.mu.Lock()
	d.cleaned = time.Time{}
	d.mu.Unlock()
	if err := must(d.Open(ended, netip.AddrPort{}, "g", Meta{}, 8))(t).Discard(); err != nil {
		t.Error(err)
	}
	d.cleaning.Wait()
	if got := entries(t, path); len(got) != 0 {
		t.Errorf("the directory has %q", got)
	}
	part := filepath.Join(path, partialName("f"))
	if err := os.WriteFile(part, noise(8), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	f := must(d.Open(ctx, netip.AddrPort{}, "f", Meta{}, 8))(t).(*dirFile)
	if err := f.Choose(Offer{Size: 8, NewHash: sha256.New}); err != nil {
		t.Fatal(err)
	}
	w := must(f.Want())(t)
	cancel(why)
	if err := f.Sum(w.Ranges[0], [SumLen]byte{}); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
	if got := entries(t, path); !slices.Equal(got, []string{filepath.Base(part)}) {
		t.Errorf("the directory has %q, want the part", got)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	d.mu.Lock()
	d.cleaned = time.Time{}
	d.mu.Unlock()
	d.clean(time.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cleans {
		t.Error("a closed Dir looks for files")
	}
}

// An error of a File that comes from the end of its context gets the class of the reason, and keeps the text that says what was done.
func TestReasonKeepsText(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	lost := failf(CodeLost, "the connection is over")
	end(lost)
	const done = "3 entries of the receiver are removed"
	s := &storer{file: &badFile{commitErr: fmt.Errorf("%w; %s", failf(CodeCanceled, "the transfer is over: %w", context.Cause(ctx)), done)}}
	err := reasonOf(ctx, s.commit())
	if f := asFailure(err); f.code != CodeLost || !strings.Contains(f.Error(), done) {
		t.Errorf("got %v (%v)", err, f.code)
	}
	for _, err := range []error{ctx.Err(), lost} {
		if got := reasonOf(ctx, err); got.Error() != lost.Error() || asFailure(got).code != CodeLost {
			t.Errorf("got %v", got)
		}
	}
	if err := errors.New("disk full"); reasonOf(ctx, err) != err { //nolint:errorlint // the same
		t.Error("another error was replaced")
	}
}
