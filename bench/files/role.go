package main

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/zeebo/blake3"
)

// runRole runs a role: "untar", which reads an archive from in, or "copy DIGEST FROM TO SUM", which copies FROM to TO and writes
// the digest to the file SUM. FROM "-" is in, and TO "-" is standard output.
func runRole(role string, args []string, in io.Reader) error {
	switch {
	case role == "untar" && len(args) == 0:
		return untar(".", in)
	case role == "copy" && len(args) == 4:
		return copyFile(args[0], args[1], args[2], args[3], in)
	}
	return fmt.Errorf("there is no role %s with %d arguments", role, len(args))
}

// untar stores the directories and files of an archive below dir, and syncs each file. It trusts the archive.
func untar(dir string, in io.Reader) error {
	r := bufio.NewReaderSize(in, 1<<20)
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // the rest of the last block, because tar c would fail if this end closed before
			return err
		}
		if err != nil {
			return err
		}
		at := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(at, 0o755)
		case tar.TypeReg:
			err = store(at, h, t)
		default:
			err = fmt.Errorf("%s is neither a directory nor a file", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

// store stores a file with mode and time, and syncs it.
func store(at string, h *tar.Header, data io.Reader) (err error) {
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Chtimes(at, h.ModTime, h.ModTime)
}

// A copy reads and writes blocks, and its other goroutine computes the digest of earlier blocks meanwhile.
const (
	copyBlock  = 1 << 20 // bytes
	copyBlocks = 8       // in memory
)

// copyFile runs the role copy.
func copyFile(digest, from, to, sumFile string, in io.Reader) (err error) {
	sums := map[string]func() hash.Hash{"sha256": sha256.New, "blake3": func() hash.Hash { return blake3.New() }}
	newSum, known := sums[digest]
	if !known {
		return fmt.Errorf("there is no digest %s", digest)
	}
	if from != "-" {
		f, openErr := os.Open(from)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		in = f
	}
	out := os.Stdout
	if to != "-" {
		if out, err = os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err != nil {
			return err
		}
	}
	sum, err := copyWithDigest(out, in, newSum())
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.WriteFile(sumFile, sum, 0o644)
}

// copyWithDigest copies all of in, while another goroutine computes its digest.
func copyWithDigest(out io.Writer, in io.Reader, sum hash.Hash) ([]byte, error) {
	free, full, done := make(chan []byte, copyBlocks), make(chan []byte, copyBlocks), make(chan struct{})
	for range copyBlocks {
		free <- make([]byte, copyBlock)
	}
	go func() {
		for b := range full {
			_, _ = sum.Write(b) // never fails (package hash)
			free <- b[:copyBlock]
		}
		close(done)
	}()
	var err error
	for err == nil {
		b := <-free
		var n int
		n, err = io.ReadFull(in, b)
		if n > 0 {
			if _, writeErr := out.Write(b[:n]); writeErr != nil {
				err = writeErr
			}
		}
		full <- b[:n]
	}
	close(full)
	<-done
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return sum.Sum(nil), nil
	}
	return nil, err
}
