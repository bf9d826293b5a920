package main

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name       string // with slashes, below the directory of the archive
	data       []byte
	executable bool
}

// mode returns the rights of the file.
func (e entry) mode() fs.FileMode {
	if e.executable {
		return 0o755
	}
	return 0o644
}

// sorted returns the entries in the order of their names.
func sorted(entries []entry) []entry {
	return slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return cmp.Compare(a.name, b.name) })
}

// packTar writes a tar archive, compressed by gzip, with all entries below directory dir. All files have the time at, and no owner.
func packTar(w io.Writer, dir string, entries []entry, at time.Time) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression) // its header has neither name nor time
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, e := range sorted(entries) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: dir + "/" + e.name, Mode: int64(e.mode()), Size: int64(len(e.data)), ModTime: at, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if _, err := t.Write(e.data); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// packZip is packTar for an archive of zip.
func packZip(w io.Writer, dir string, entries []entry, at time.Time) error {
	z := zip.NewWriter(w)
	for _, e := range sorted(entries) {
		h := &zip.FileHeader{Name: dir + "/" + e.name, Method: zip.Deflate, Modified: at.UTC()}
		h.SetMode(e.mode())
		f, err := z.CreateHeader(h)
		if err == nil {
			_, err = f.Write(e.data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return z.Close()
}

// writeSums writes SHA256SUMS, which sha256sum -c reads.
func (r *release) writeSums(names []string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(slices.Values(names)) {
		data, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), name)
	}
	return r.write("SHA256SUMS", []byte(b.String()))
}
