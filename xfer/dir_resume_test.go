package xfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"cinnabar/verbs/iwarp"
)

// cutAt is a source that cannot be read from an offset on. Its error comes when the receiver has stored all before that offset in part, because the sender
// ends the transfer at once, also while the receiver has not stored the last chunk.
type cutAt struct {
	io.ReaderAt
	at   int64
	part string
	ctx  context.Context //nolint:containedctx // io.ReaderAt has none
}

func (c cutAt) ReadAt(b []byte, offset int64) (int, error) {
	if offset+int64(len(b)) > c.at {
		for c.ctx.Err() == nil {
			if info, err := os.Stat(c.part); err == nil && info.Size() >= c.at {
				return 0, errors.New("cut")
			}
			runtime.Gosched()
		}
		return 0, c.ctx.Err()
	}
	return c.ReaderAt.ReadAt(b, offset)
}

// chosenOf is a source of which the receiver chooses.
func chosenOf(data []byte, wishes Wishes) Source {
	src := sourceOf("f", data)
	src.Choice = &Choice{Wishes: wishes}
	return src
}

// A file of which the transfer was cut goes on where it stopped. What differs crosses again, and the result is whole in any case.
//
// parity: X02 Y09
func TestResumeFile(t *testing.T) {
	needsLocks(t)
	ctx := testContext(t)
	data := noise(3*resumeBlock + 1000)
	for name, c := range map[string]struct {
		between func(t *testing.T, part string)
		kept    int64
	}{
		"as it was":     {func(*testing.T, string) {}, 2 * resumeBlock},
		"block changed": {func(t *testing.T, part string) { overwrite(t, part, []byte{data[5] ^ 1}, 5) }, resumeBlock},
		"shorter": {func(t *testing.T, part string) {
			if err := os.Truncate(part, resumeBlock); err != nil {
				t.Fatal(err)
			}
		}, resumeBlock},
		"longer than the file": {func(t *testing.T, part string) {
			if err := os.Truncate(part, int64(len(data))+1); err != nil {
				t.Fatal(err)
			}
		}, 0},
		"of others": {func(t *testing.T, part string) {
			if err := os.Chmod(part, 0o666); err != nil {
				t.Fatal(err)
			}
		}, 0},
		"gone": {func(t *testing.T, part string) {
			if err := os.Remove(part); err != nil {
				t.Fatal(err)
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			opt := DirOptions{KeepFor: time.Hour, KeepPartial: name == "of others"} // a part that is not used stays
			srv := serve(t, device(t, iwarp.Config{}), Receiver{}, opt)
			dev := device(t, iwarp.Config{})
			s := Sender{Chunk: 1 << 20, Window: 1}
			cut := chosenOf(data, 0)
			cut.Data = cutAt{cut.Data, 2 * resumeBlock, filepath.Join(srv.path, partialName("f")), ctx}
			_, err := s.Send(ctx, dev, srv.addr, cut)
			wantCode(t, err, CodeSource, false)
			if _, err := srv.outcome(ctx); err == nil {
				t.Error("the receiver has no error")
			}
			if got := srv.names(); !slices.Equal(got, []string{partialName("f")}) {
				t.Fatalf("the directory has %q", got)
			}
			c.between(t, filepath.Join(srv.path, partialName("f")))
			crossed := int64(0)
			s.Trace = func() Tracer {
				return func(st Step) {
					if st.Op == OpWrite {
						crossed += int64(st.Bytes)
					}
				}
			}
			res, err := s.Send(ctx, dev, srv.addr, chosenOf(data, 0))
			if err != nil || res.Kept != c.kept || res.Size != int64(len(data)) {
				t.Errorf("got %+v, %v; want %d bytes kept", res, err, c.kept)
			}
			if sums := crossed - (res.Size - res.Kept); sums < 0 || sums > 3*SumLen || sums%SumLen != 0 {
				t.Errorf("%d bytes have crossed, of a file of %d of which %d were there", crossed, res.Size, res.Kept)
			}
			if res.Kept > 0 && res.Sum != [SumLen]byte{} {
				t.Error("a file of which a part crossed has a digest")
			}
			srv.wantFile("f", data)
			if mode := mustInfo(t, filepath.Join(srv.path, "f")).Mode().Perm(); mode != freshMode(t) {
				t.Errorf("the file has mode %v, a new one %v", mode, freshMode(t))
			}
		})
	}
}

func overwrite(t *testing.T, path string, b []byte, offset int64) {
	t.Helper()
	f := must(os.OpenFile(path, os.O_WRONLY, 0))(t)
	must(f.WriteAt(b, offset))(t)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustInfo(t *testing.T, path string) os.FileInfo {
	t.Helper()
	return must(os.Stat(path))(t)
}

// freshMode returns the mode of a new file.
func freshMode(t *testing.T) os.FileMode {
	t.Helper()
	f := must(os.OpenFile(filepath.Join(t.TempDir(), "new"), os.O_CREATE|os.O_WRONLY, 0o644))(t)
	defer f.Close()
	return must(f.Stat())(t).Mode().Perm()
}

// A second transfer of a name is refused while one runs that another process has begun.
func TestResumeIsLocked(t *testing.T) {
	needsLocks(t)
	path := t.TempDir()
	var files []*dirFile
	for range 2 { // two Dirs stand for two processes
		d := must(OpenDir(t.Context(), path, DirOptions{KeepFor: time.Hour}))(t)
		defer d.Close()
		files = append(files, must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 10))(t).(*dirFile))
	}
	offer := Offer{Size: 10, NewHash: Hashes{}.sumHash(SHA256)}
	if err := files[0].Choose(offer); err != nil {
		t.Fatal(err)
	}
	err := files[1].Choose(offer)
	if !errors.Is(err, CodeExists) {
		t.Errorf("got %v", err)
	}
	wantText(t, err.Error(), `"f" is being received right now by another process`)
	for _, f := range files {
		if err := f.Discard(); err != nil {
			t.Error(err)
		}
	}
	if got := entries(t, path); len(got) != 0 {
		t.Errorf("transfers without data leave %q", got)
	}
}

// A file that the receiver has is left out: by size and time, or by its contents. One that differs in some blocks crosses in part.
func TestUpdateFile(t *testing.T) {
	ctx := testContext(t)
	data := noise(2*resumeBlock + 5)
	old := time.Unix(1e9, 12345)
	meta := Meta{Mode: 0o640, ModTime: old}
	changed := bytes.Clone(data)
	changed[1]++
	for name, c := range map[string]struct {
		there  []byte
		time   time.Time
		wishes Wishes
		kept   int64
	}{
		"the same, by time":           {data, old, WishUpdate, int64(len(data))},
		"another time":                {data, old.Add(1), WishUpdate, 0},
		"another size":                {data[1:], old, WishUpdate, 0},
		"the same time, not contents": {changed, old, WishUpdate, int64(len(data))},
		"the same, by contents":       {data, old, WishChecksum, int64(len(data))},
		"contents and another time":   {data, old.Add(1), WishChecksum, int64(len(data))},
		"one block differs":           {changed, old, WishChecksum, resumeBlock + 5},
		"no wish":                     {data, old, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{Overwrite: true, KeepFor: time.Hour})
			at := filepath.Join(srv.path, "f")
			if err := errors.Join(os.WriteFile(at, c.there, 0o640), os.Chtimes(at, c.time, c.time)); err != nil {
				t.Fatal(err)
			}
			src := chosenOf(data, c.wishes)
			src.Meta = meta
			var s Sender
			res, err := s.Send(ctx, device(t, iwarp.Config{}), srv.addr, src)
			if err != nil || res.Kept != c.kept {
				t.Errorf("%d bytes were kept, %v; want %d", res.Kept, err, c.kept)
			}
			if name == "the same time, not contents" {
				data := changed
				srv.wantFile("f", data)
			} else {
				srv.wantFile("f", data)
			}
			if got := mustInfo(t, at).ModTime(); !got.Equal(old) {
				t.Errorf("the time is %v", got)
			}
		})
	}
	srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{Overwrite: true})
	_, err := (&Sender{}).Send(ctx, device(t, iwarp.Config{}), srv.addr, chosenOf(data, WishDelete))
	wantCode(t, err, CodeUnsupported, true, "nothing to remove beside the file")
}

// A source that has grown is found although the receiver wants nothing of it.
func TestGrownSourceOfNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	data := noise(1000)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{Overwrite: true})
	dev := device(t, iwarp.Config{})
	src := chosenOf(data, 0)
	if _, err := (&Sender{}).Send(ctx, dev, srv.addr, src); err != nil {
		t.Fatal(err)
	}
	src = chosenOf(data[:999], WishChecksum)
	src.Data = bytes.NewReader(data)
	_, err := (&Sender{}).Send(ctx, dev, srv.addr, src)
	wantCode(t, err, CodeChanged, false, "has grown")
}

// replacing opens a directory that has a file "f" with data and a time, and a transfer of it with wishes.
func replacing(t *testing.T, opt DirOptions, data string, o Offer) (f *dirFile, at string) {
	t.Helper()
	path := t.TempDir()
	opt.Overwrite = true
	d := must(OpenDir(t.Context(), path, opt))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	at = filepath.Join(path, "f")
	then := time.Unix(1e9, 0)
	if err := errors.Join(os.WriteFile(at, []byte(data), 0o644), os.Chtimes(at, then, then)); err != nil {
		t.Fatal(err)
	}
	f = must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{ModTime: then}, int64(len(data))))(t).(*dirFile)
	o.Size, o.NewHash = int64(len(data)), sha256.New
	if err := f.Choose(o); err != nil {
		t.Fatal(err)
	}
	return f, at
}

// A file that is kept must be there at the end, as it was compared.
func TestKeptFileChanges(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for name, c := range map[string]struct {
			change func(at string) error
			code   Code
		}{
			"as it was": {func(string) error { return nil }, 0},
			"gone":      {os.Remove, CodeExists},
			"contents":  {func(at string) error { return os.WriteFile(at, []byte("DATA"), 0o644) }, CodeExists},
			"another file": {func(at string) error {
				then := time.Unix(1e9, 0)
				return errors.Join(os.WriteFile(at+"2", []byte("DATA"), 0o644), os.Chtimes(at+"2", then, then), os.Rename(at+"2", at))
			}, CodeExists},
		} {
			for _, wish := range []Wishes{WishUpdate, WishChecksum} {
				t.Run(name, func(t *testing.T) {
					f, at := replacing(t, DirOptions{Sync: sync, KeepFor: time.Hour}, "data", Offer{Wishes: wish})
					w := must(f.Want())(t)
					for _, r := range w.Ranges {
						if err := f.Sum(r, sha256.Sum256([]byte("data"))); err != nil {
							t.Fatal(err)
						}
						w = must(f.Want())(t)
					}
					if !w.Last || len(w.Ranges) > 0 {
						t.Fatalf("it wants %+v", w)
					}
					if err := c.change(at); err != nil {
						t.Fatal(err)
					}
					err := f.Commit()
					if c.code == 0 && err != nil || c.code != 0 && !errors.Is(err, c.code) {
						t.Errorf("got %v", err)
					}
					if err := f.Discard(); err != nil {
						t.Error(err)
					}
					if names := entries(t, filepath.Dir(at)); name != "gone" && !slices.Equal(names, []string{"f"}) {
						t.Errorf("in the directory: %q", names)
					}
				})
			}
		}
	}
}

// A file of which a part crosses in any case is not compared, because that part may differ.
func TestHeadIsNotCompared(t *testing.T) {
	for _, wish := range []Wishes{WishUpdate, WishChecksum} {
		f, at := replacing(t, DirOptions{}, "XXXXdata", Offer{Head: 4, Wishes: wish})
		must(f.WriteAt([]byte("head"), 0))(t)
		w := must(f.Want())(t)
		if want := []Range{{Offset: 4, Length: 4}}; !slices.Equal(w.Ranges, want) || !w.Last {
			t.Fatalf("it wants %+v", w)
		}
		must(f.WriteAt([]byte("data"), 4))(t)
		if err := f.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := must(os.ReadFile(at))(t); string(got) != "headdata" {
			t.Errorf("the file has %q", got)
		}
	}
}

// A part of a file is not compared behind a head, because a sender could learn the last bytes of the part by such heads, one by one.
func TestPartBehindHead(t *testing.T) {
	needsLocks(t)
	for head, want := range map[int64]Wanted{
		0: {Ranges: []Range{{Length: 8, Sum: true}}},
		7: {Ranges: []Range{{Offset: 7, Length: 1}}, Last: true},
		8: {Last: true},
	} {
		path := t.TempDir()
		d := must(OpenDir(t.Context(), path, DirOptions{KeepFor: time.Hour}))(t)
		part := filepath.Join(path, partialName("f"))
		if err := os.WriteFile(part, []byte("the part"), 0o600); err != nil {
			t.Fatal(err)
		}
		f := must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 8))(t).(*dirFile)
		if err := f.Choose(Offer{Head: head, Size: 8, NewHash: sha256.New}); err != nil {
			t.Fatal(err)
		}
		if got := must(f.Want())(t); !slices.Equal(got.Ranges, want.Ranges) || got.Last != want.Last {
			t.Errorf("with a head of %d bytes it wants %+v, and not %+v", head, got, want)
		}
		if err := errors.Join(f.Discard(), d.Close()); err != nil {
			t.Error(err)
		}
		if got := must(os.ReadFile(part))(t); string(got) != "the part" {
			t.Errorf("with a head of %d bytes the part is %q", head, got)
		}
	}
}

// A part that has become shorter than it was crosses again, as do blocks that cannot be read.
func TestPartialBecomesShorter(t *testing.T) {
	needsLocks(t)
	path := t.TempDir()
	d := must(OpenDir(t.Context(), path, DirOptions{KeepFor: time.Hour}))(t)
	defer d.Close()
	part := filepath.Join(path, partialName("f"))
	if err := os.WriteFile(part, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 6))(t).(*dirFile)
	if err := f.Choose(Offer{Size: 6, NewHash: sha256.New}); err != nil {
		t.Fatal(err)
	}
	w := must(f.Want())(t)
	if len(w.Ranges) != 1 || !w.Ranges[0].Sum {
		t.Fatalf("it wants %+v", w)
	}
	if err := os.Truncate(part, 2); err != nil {
		t.Fatal(err)
	}
	if err := f.Sum(w.Ranges[0], sha256.Sum256([]byte("data"))); err != nil {
		t.Fatal(err)
	}
	w = must(f.Want())(t)
	if want := []Range{{Length: 6}}; !slices.Equal(w.Ranges, want) || !w.Last {
		t.Fatalf("it wants %+v", w)
	}
	must(f.WriteAt([]byte("data42"), 0))(t)
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := must(os.ReadFile(filepath.Join(path, "f")))(t); string(got) != "data42" {
		t.Errorf("the file has %q", got)
	}
}
