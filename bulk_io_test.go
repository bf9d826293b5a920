package cinnabar

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"cinnabar/codes"
)

func TestRemoteReadAtWriteAt(t *testing.T) {
	p := newBulkPair(t)
	theirs := expose(t, p.there, ReadWrite, pieces([]byte("0123456789"), 3, 7)...)
	r := p.remote(t, theirs)
	for _, c := range []struct {
		n    int
		off  int64
		want string
		err  error
	}{
		{4, 0, "0123", nil}, {4, 6, "6789", nil}, {4, 8, "89", io.EOF}, {4, 10, "", io.EOF}, {4, 11, "", io.EOF}, {4, 1 << 62, "", io.EOF},
		{0, 3, "", nil}, {0, 10, "", nil},
	} {
		buf := make([]byte, c.n)
		n, err := r.ReadAt(t.Context(), buf, c.off)
		if string(buf[:n]) != c.want || !errors.Is(err, c.err) {
			t.Errorf("ReadAt(%d bytes, %d) = %q, %v; want %q, %v", c.n, c.off, buf[:n], err, c.want, c.err)
		}
	}
	for _, c := range []struct {
		text string
		off  int64
		n    int
		err  error
		want string
	}{
		{"ab", 0, 2, nil, "ab23456789"}, {"xyz", 8, 2, io.ErrShortWrite, "ab234567xy"}, {"q", 10, 0, io.ErrShortWrite, "ab234567xy"},
		{"", 10, 0, nil, "ab234567xy"},
	} {
		n, err := r.WriteAt(t.Context(), []byte(c.text), c.off)
		if n != c.n || !errors.Is(err, c.err) || string(contents(theirs)) != c.want {
			t.Errorf("WriteAt(%q, %d) = %d, %v, and leaves %q; want %d, %v, %q", c.text, c.off, n, err, contents(theirs), c.n, c.err, c.want)
		}
	}
	_, err := r.ReadAt(t.Context(), make([]byte, 1), -1)
	wantCode(t, err, codes.InvalidArg, "offset -1")
	_, err = r.WriteAt(t.Context(), make([]byte, 1), -1)
	wantCode(t, err, codes.InvalidArg, "offset -1")
	_, err = p.remote(t, expose(t, p.there, WriteOnly, make([]byte, 9))).ReadAt(t.Context(), make([]byte, 1), 0)
	wantCode(t, err, codes.Permission, "pull", "remote")
}

func TestRemoteReadAtContext(t *testing.T) {
	p := newBulkPair(t)
	frozen := p.remote(t, expose(t, p.there, ReadWrite, make([]byte, 9))).h.On(silentPeer(t, p.here))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	buf := make([]byte, 9)
	_, err := frozen.ReadAt(ctx, buf, 0)
	wantCode(t, err, codes.Timeout, "pull")
	_, err = frozen.WriteAt(ctx, buf, 0)
	wantCode(t, err, codes.Timeout, "push")
	clear(buf) // ours again
}

// Remote memory is an ordinary reader: whole, seekable, at random, and part by part.
// parity: Y04
func TestRemoteReader(t *testing.T) {
	p := newBulkPair(t)
	data := noise(1000)
	r := p.remote(t, expose(t, p.there, ReadOnly, pieces(data, 400, 1, 599)...))
	if err := iotest.TestReader(r.Reader(t.Context()), data); err != nil {
		t.Error(err)
	}
	if err := iotest.TestReader(r.Slice(100, 700).Reader(t.Context()), data[100:800]); err != nil {
		t.Error(err)
	}
}

// parity: Y04
func TestRemoteWriter(t *testing.T) {
	p := newBulkPair(t)
	theirs := expose(t, p.there, WriteOnly, make([]byte, 1000))
	data := noise(1000)
	n, err := io.Copy(p.remote(t, theirs).Writer(t.Context()), iotest.HalfReader(bytes.NewReader(data)))
	if n != 1000 || err != nil || !bytes.Equal(theirs.Bytes(), data) {
		t.Errorf("wrote %d, %v", n, err)
	}
}

// An archive is opened in the memory of another process; only what is asked for travels.
// parity: Y04
func TestZipInRemoteMemory(t *testing.T) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	files := map[string][]byte{"small.txt": []byte("in the archive"), "large.bin": noise(200_000)}
	for name, data := range files {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p := newBulkPair(t)
	r := p.remote(t, expose(t, p.there, ReadOnly, archive.Bytes()))
	z, err := zip.NewReader(r.Reader(t.Context()), r.Len())
	if err != nil {
		t.Fatal(err)
	}
	if got := p.here.core.Stats().BytesRead; got > 100_000 {
		t.Errorf("%d bytes were read to open the archive", got)
	}
	for name, want := range files {
		f, err := z.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// io.Copy from remote memory takes a transfer for each MiB, not for each of its own buffers.
// parity: Y04
func TestRemoteReaderWriteTo(t *testing.T) {
	p := newBulkPair(t)
	for _, size := range []int{0, 1, readAheadBytes, readAheadBytes*readAheadPieces + 1, readAheadBytes*9 + 77} {
		data := noise(size)
		r := p.remote(t, expose(t, p.there, ReadOnly, data)).Reader(t.Context())
		before := p.here.core.Stats().Reads
		skip := min(size, 3) // the position counts
		if _, err := io.CopyN(io.Discard, r, int64(skip)); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		n, err := io.Copy(&got, r)
		if n != int64(size-skip) || err != nil || !bytes.Equal(got.Bytes(), data[skip:]) {
			t.Errorf("%d bytes: copied %d, %v", size, n, err)
		}
		if reads, most := p.here.core.Stats().Reads-before, uint64(size/readAheadBytes+2); reads > most {
			t.Errorf("%d bytes: %d transfers, want at most %d", size, reads, most)
		}
		if n, err := io.Copy(&got, r); n != 0 || err != nil {
			t.Errorf("%d bytes: %d more at the end, %v", size, n, err)
		}
	}
}

// A writer that fails, or takes less without an error, ends the copy; reading goes on behind what it took.
func TestRemoteReaderWriteToFails(t *testing.T) {
	p := newBulkPair(t)
	const size, room = readAheadBytes*6 + 5, readAheadBytes*2 + 7
	data := noise(size)
	full := errors.New("full")
	for name, short := range map[string]error{"fails": full, "short": nil} {
		r := p.remote(t, expose(t, p.there, ReadOnly, data)).Reader(t.Context())
		var got bytes.Buffer
		w := writerFunc(func(b []byte) (int, error) {
			n := min(len(b), room-got.Len())
			got.Write(b[:n])
			if n < len(b) {
				return n, short
			}
			return n, nil
		})
		want := full
		if short == nil {
			want = io.ErrShortWrite
		}
		if n, err := io.Copy(w, r); n != room || !errors.Is(err, want) {
			t.Errorf("%s: %d, %v; want %d, %v", name, n, err, room, want)
		}
		rest, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(append(got.Bytes(), rest...), data) {
			t.Errorf("%s: %d bytes were left, %v", name, len(rest), err)
		}
	}
}

// A transfer that fails ends the copy with its error, behind the bytes that came.
func TestRemoteReaderWriteToRefused(t *testing.T) {
	p := newBulkPair(t)
	n, err := io.Copy(io.Discard, p.remote(t, expose(t, p.there, WriteOnly, make([]byte, 3*readAheadBytes))).Reader(t.Context()))
	wantCode(t, err, codes.Permission, "pull", "remote")
	if n != 0 {
		t.Errorf("%d bytes were copied", n)
	}
	gone := expose(t, p.there, ReadOnly, make([]byte, 3*readAheadBytes))
	r := p.remote(t, gone).Reader(t.Context())
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); n != 0 || err == nil {
		t.Errorf("memory that is closed: %d bytes, %v", n, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
