//go:build unix

package cinnabar

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"cinnabar/codes"
)

// tempFile returns a file with data in it, open for reading and writing.
func tempFile(t *testing.T, data []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	return f
}

func exposeFile(t *testing.T, e *Engine, mode Mode, f *os.File) *Bulk {
	t.Helper()
	b, err := e.ExposeFile(mode, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBulk(t, b) })
	return b
}

// A file is read by a peer, and its closing does not matter.
// parity: Y04
func TestExposeFileRead(t *testing.T) {
	p := newBulkPair(t)
	data := noise(100_000)
	f, err := os.Open(tempFile(t, data).Name())
	if err != nil {
		t.Fatal(err)
	}
	b := exposeFile(t, p.there, ReadOnly, f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r := p.remote(t, b)
	if err := iotest.TestReader(r.Slice(0, 5000).Reader(t.Context()), data[:5000]); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(r.Reader(t.Context())); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	_, err = r.WriteAt(t.Context(), []byte("x"), 0)
	wantCode(t, err, codes.Permission)
	_, err = b.WriteAt([]byte("x"), 0) // would end the program if it were tried
	wantCode(t, err, codes.Permission, "local bulk is read-only")
	_, err = r.Pull(t.Context(), b)
	wantCode(t, err, codes.Permission)
}

// What a peer writes is in the file.
func TestExposeFileWrite(t *testing.T) {
	p := newBulkPair(t)
	f := tempFile(t, make([]byte, 10_000))
	b, err := p.there.ExposeFile(ReadWrite, f)
	if err != nil {
		t.Fatal(err)
	}
	data := noise(10_000)
	if n, err := p.remote(t, b).WriteAt(t.Context(), data, 0); n != 10_000 || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	closeBulk(t, b)
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file has %d bytes, %v", len(got), err)
	}
}

func TestExposeFileRefused(t *testing.T) {
	e := bulkEngine(t, nil)
	if b := exposeFile(t, e, ReadOnly, tempFile(t, nil)); b.Len() != 0 {
		t.Errorf("an empty file has %d bytes", b.Len())
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	_, err = e.ExposeFile(ReadOnly, dir)
	wantCode(t, err, codes.InvalidArg, "regular file")
	full := tempFile(t, make([]byte, 10))
	_, err = e.ExposeFile(5, full)
	wantCode(t, err, codes.InvalidArg, "mode 5")
	reading, err := os.Open(full.Name())
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.ExposeFile(WriteOnly, reading)
	wantCode(t, err, codes.Access, "permission denied")
	if err := reading.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = e.ExposeFile(ReadOnly, reading)
	wantCode(t, err, codes.IOError, "closed")
	if !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v is not os.ErrClosed", err)
	}
}
