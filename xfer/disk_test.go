package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cinnabar/verbs/iwarp"
)

// badFile fails at one of its calls.
type badFile struct {
	File
	writeErr, commitErr error
	from                int64 // writes from here on fail
	short               bool  // they write half and no error
}

func (f *badFile) WriteAt(b []byte, off int64) (int, error) {
	if off < f.from {
		return f.File.WriteAt(b, off)
	}
	if f.short {
		return f.File.WriteAt(b[:len(b)/2], off)
	}
	return 0, f.writeErr
}

func (f *badFile) Commit() error {
	if f.commitErr != nil {
		return f.commitErr
	}
	return f.File.Commit()
}

// badSource fails from an offset on.
type badSource struct {
	io.ReaderAt
	from int64
	err  error
}

func (s badSource) ReadAt(b []byte, off int64) (int, error) {
	if off >= s.from {
		return 0, s.err
	}
	return s.ReaderAt.ReadAt(b, off)
}

// Whatever goes wrong with a disk on one side is told to the other in words, both
// sides fail, nothing stands under the name, and the next transfer works.
// parity: B45
func TestDiskErrors(t *testing.T) {
	const chunk = minChunk
	data := noise(5 * chunk)
	full := &os.PathError{Op: "write", Path: "/var/secret/place", Err: syscall.ENOSPC}
	for _, c := range []struct {
		name   string
		file   *badFile
		src    func(Source) Source
		code   Code
		remote bool // as the sender sees it
		want   string
	}{
		{"disk full", &badFile{writeErr: full, from: 2 * chunk}, nil, CodeStorage, true, "cannot write at offset 8192: the disk of the receiver's directory is full: no space left on device"},
		{"disk full at once", &badFile{writeErr: full}, nil, CodeStorage, true, "offset 0"},
		{"short write", &badFile{short: true, from: 4 * chunk}, nil, CodeStorage, true, "cannot write at offset 18432: short write"},
		{"commit fails", &badFile{commitErr: errors.New("quota"), from: 1 << 60}, nil, CodeStorage, true, "quota"},
		{"read error", nil, func(s Source) Source {
			s.Data = badSource{s.Data, 3 * chunk, syscall.EIO}
			return s
		}, CodeSource, false, "cannot read at offset 12288: input/output error"},
		{"read error at once", nil, func(s Source) Source {
			s.Data = badSource{s.Data, 0, syscall.EIO}
			return s
		}, CodeSource, false, "offset 0"},
		{"shrinks", nil, func(s Source) Source { s.Size++; return s }, CodeChanged, false, "ends after 20480 bytes; it had 20481"},
		{"shrinks by a chunk", nil, func(s Source) Source { s.Size += chunk; return s }, CodeChanged, false, "it had 24576"},
		{"grows", nil, func(s Source) Source { s.Size--; return s }, CodeChanged, false, "has grown beyond the 20479 bytes"},
		{"grows from nothing", nil, func(s Source) Source { s.Size = 0; return s }, CodeChanged, false, "has grown beyond the 0 bytes"},
		{"fails beyond the end", nil, func(s Source) Source {
			s.Data = badSource{s.Data, s.Size, syscall.EIO}
			return s
		}, CodeSource, false, "cannot read at offset 20480"},
	} {
		for _, w := range ways[:7] {
			t.Run(c.name+" "+w.name, func(t *testing.T) {
				ctx := testContext(t)
				dir := must(OpenDir(t.Context(), t.TempDir(), DirOptions{}))(t)
				bad := c.file != nil
				var mu sync.Mutex
				srv := serve(t, device(t, w.server), Receiver{Open: func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
					f, err := dir.Open(ctx, from, name, meta, size)
					mu.Lock()
					defer mu.Unlock()
					if bad && err == nil {
						b := *c.file
						b.File, f = f, &b
					}
					return f, err
				}}, DirOptions{})
				srv.path = dir.root.Name()
				dev := device(t, w.client)
				src := sourceOf("f", data)
				if c.src != nil {
					src = c.src(src)
				}
				s := Sender{Protocol: w.protocol, Chunk: chunk}
				_, err := s.Send(ctx, dev, srv.addr, src)
				wantCode(t, err, c.code, c.remote, c.want)
				_, err = srv.outcome(ctx)
				wantCode(t, err, c.code, !c.remote, c.want)
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("%v tells the receiver's path", err)
				}
				if names := srv.names(); len(names) > 0 {
					t.Errorf("the directory has %q", names)
				}
				mu.Lock()
				bad = false
				mu.Unlock()
				if _, err := s.Send(ctx, dev, srv.addr, sourceOf("f", data)); err != nil {
					t.Errorf("the next transfer: %v", err)
				}
				srv.wantFile("f", data)
				srv.stop()
				if err := dir.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What a custom Open says is told to the sender; its class is what it says, or
// that nothing can be stored.
func TestOpenRefuses(t *testing.T) {
	ctx := testContext(t)
	var refusal error
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Open: func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
		if name != "f" || size != 3 {
			t.Errorf("asked for %q of %d bytes", name, size)
		}
		return nil, refusal
	}}, DirOptions{})
	dev := device(t, iwarp.Config{})
	for refuse, code := range map[error]Code{
		errors.New("not on Sundays"):                              CodeStorage,
		fmt.Errorf("%w: not on Sundays", CodeOther):               CodeStorage,
		fmt.Errorf("%w: not on Sundays", CodeName):                CodeName,
		&Error{Code: CodeBusy, Err: errors.New("not on Sundays")}: CodeBusy,
	} {
		for _, p := range []Protocol{Basic, Fast} {
			refusal = refuse
			_, err := (&Sender{Protocol: p}).Send(ctx, dev, srv.addr, sourceOf("f", []byte("abc")))
			wantCode(t, err, code, true, "not on Sundays")
			_, err = srv.outcome(ctx)
			wantCode(t, err, code, false, "not on Sundays")
		}
	}
}

// An Open that returns neither a file nor an error is a failure, not a panic.
func TestOpenMakesNothing(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return nil, nil }}, DirOptions{})
	for _, p := range []Protocol{Basic, Fast} {
		_, err := (&Sender{Protocol: p}).Send(ctx, device(t, iwarp.Config{}), srv.addr, sourceOf("f", []byte("abc")))
		wantCode(t, err, CodeStorage, true, "made no file")
		_, err = srv.outcome(ctx)
		wantCode(t, err, CodeStorage, false, "made no file")
	}
}
