package hello_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/hello"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPages wants every block of Go on two pages in a file of this folder, line by line, so that what they show compiles
// and works.
func TestPages(t *testing.T) {
	checkPage(t, "../../docs/rpc.md")
	checkPage(t, "../../README.md")
}

// checkPage checks the blocks of a page.
func checkPage(t *testing.T, page string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source []string
	for _, name := range append(files, "server/main.go", "client/main.go") {
		source = append(source, read(t, name))
	}
	blocks := strings.Split(read(t, page), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatalf("%s has no block of Go", page)
	}
	for _, b := range blocks {
		text, _, _ := strings.Cut(b, "```")
		found := false
		for _, s := range source {
			found = found || strings.Contains(s, text)
		}
		if !found {
			t.Errorf("%s: no file has this block:\n%s", page, text)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rig is two engines on loopback.
type rig struct {
	serving, calling *cinnabar.Engine
	server           *cinnabar.Endpoint
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{serving: listen(t), calling: listen(t)}
	var err error
	if r.server, err = r.calling.Lookup(r.serving.Addr()); err != nil {
		t.Fatal(err)
	}
	return r
}

func listen(t *testing.T) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, e.Close()) })
	return e
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestExplain(t *testing.T) {
	r := newRig(t)
	check(t, hello.Greet.Handle(r.serving, func(context.Context, hello.In) (hello.Out, error) {
		return hello.Out{}, codes.Busy
	}))
	_, busy := hello.Greet.Call(t.Context(), r.server, hello.In{})
	_, absent := Count.Call(t.Context(), r.server, CountIn{})
	check(t, r.serving.Close())
	_, gone := hello.Greet.Call(t.Context(), r.server, hello.In{})
	past, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	_, late := hello.Greet.Call(past, r.server, hello.In{})
	for err, want := range map[error]string{
		nil: "it worked", busy: "the server answers HG_BUSY", absent: "the server does not know this procedure",
		gone: "there is nobody, or not any more", late: "no answer in time",
	} {
		if got := explain(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

func TestCalls(t *testing.T) {
	r := newRig(t)
	check(t, serveTwo(r.serving))
	out, err := inFrench(t.Context(), r.server, "you")
	check(t, err)
	q := make(queue)
	check(t, q.serve(r.serving))
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.work()
	}()
	check(t, forward(r.calling, r.server))
	self := r.calling.Self()
	greetings, err := greetAll(t.Context(), []*cinnabar.Endpoint{self, r.server}, "you")
	check(t, err)
	if diff := cmp.Diff(append(greetings, out.Greeting), []string{"at last, you", "at last, you", "salut, you"}); diff != "" {
		t.Error(diff)
	}
	close(q)
	<-done
}

func TestOneWay(t *testing.T) {
	r := newRig(t)
	names := make(chan string, 1)
	check(t, Note.Handle(r.serving, func(_ context.Context, in hello.In) error {
		names <- in.Name
		return nil
	}))
	check(t, note(t.Context(), r.server, "you"))
	if got := <-names; got != "you" {
		t.Error(got)
	}
}

func TestBounded(t *testing.T) {
	var log bytes.Buffer
	e, disk, err := bounded(t.Context(), "ofi+tcp://127.0.0.1", slog.New(slog.NewTextHandler(&log, nil)))
	check(t, err)
	check(t, hello.Greet.Handle(e, func(context.Context, hello.In) (hello.Out, error) {
		return hello.Out{}, nil
	}, cinnabar.WithPool(disk)))
	_, err = hello.Greet.Call(t.Context(), e.Self(), hello.In{})
	check(t, err)
	if got := e.Stats().Pools["disk"].Served; got != 1 {
		t.Errorf("the pool has served %d calls", got)
	}
	check(t, e.Shutdown(t.Context()))
	for _, side := range []string{"server=false", "server=true"} {
		if !strings.Contains(log.String(), "msg=greet "+side) {
			t.Errorf("no %s in the log:\n%s", side, &log)
		}
	}
}

func TestBulk(t *testing.T) {
	r := newRig(t)
	text := bytes.Repeat([]byte("word "), 10000)
	buffers, err := makeBuffers(r.serving)
	check(t, err)
	fromPool := func(e *cinnabar.Engine) error { return serveCountFromPool(e, buffers) }
	for _, serve := range []func(*cinnabar.Engine) error{serveCount, fromPool} {
		check(t, serve(r.serving))
		n, err := countWords(t.Context(), r.calling, r.server, text)
		check(t, err)
		if n != 10000 {
			t.Errorf("%d words", n)
		}
		check(t, Count.Remove(r.serving))
	}
	check(t, r.serving.Shutdown(t.Context()))
	check(t, buffers.Close())
}

func TestRemote(t *testing.T) {
	r := newRig(t)
	name := filepath.Join(t.TempDir(), "archive.zip")
	writeArchive(t, name)
	file, err := lendFile(r.serving, name)
	check(t, err)
	defer func() { check(t, file.Close()) }()
	names, err := listing(t.Context(), file.Handle().On(r.server))
	check(t, err)
	if diff := cmp.Diff(names, []string{"a", "b"}); diff != "" {
		t.Error(diff)
	}

	content := []byte(read(t, name))
	got := make([]byte, len(content))
	local, err := r.calling.Expose(cinnabar.WriteOnly, got)
	check(t, err)
	defer func() { check(t, local.Close()) }()
	_, err = second(t.Context(), file.Handle().On(r.server), local)
	check(t, err)
	if half := len(content) / 2; !bytes.Equal(got[:half], content[half:2*half]) {
		t.Error("the second half differs")
	}
	n, err := fromOwner(t.Context(), r.calling, file.Bound(), local)
	check(t, err)
	if n != int64(len(content)) || !bytes.Equal(got, content) {
		t.Errorf("%d bytes by the bound handle, or others than in the file", n)
	}
}

// writeArchive makes an archive of two files with 3 MiB in all.
func writeArchive(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	check(t, err)
	w := zip.NewWriter(f)
	for _, entry := range []string{"a", "b"} {
		part, err := w.CreateHeader(&zip.FileHeader{Name: entry, Method: zip.Store})
		check(t, err)
		_, err = part.Write(bytes.Repeat([]byte(entry), 3<<19))
		check(t, err)
	}
	check(t, errors.Join(w.Close(), f.Close()))
}
