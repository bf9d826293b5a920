package demo

import (
	crand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// source is the data of a job. Both processes of a job open the same source,
// so that either can be the sender; it can be read any number of times.
type source struct {
	Path string   `json:"path,omitempty"` // a regular file; empty for random data
	Seed [32]byte `json:"seed"`           // of the random data
	Size int64    `json:"size"`           // bytes
}

// randomSource returns fresh random data of the given size, which is the same for
// every process with the seed.
func randomSource(size int64) source {
	s := source{Size: size}
	crand.Read(s.Seed[:]) // never fails: crypto/rand ends the process instead
	return s
}

// fileSource is the content that the file has now. A file that changes while
// the job runs makes the digests differ, which the job reports.
func fileSource(path string) (source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return source{}, fmt.Errorf("open the data: %w", err)
	}
	if info.IsDir() {
		return source{}, fmt.Errorf("open the data: %s is a directory; choose a file", path)
	}
	if !info.Mode().IsRegular() {
		return source{}, fmt.Errorf("open the data: %s is no regular file (%s); it is read several times, so copy it to one first", path, info.Mode())
	}
	return source{Path: path, Size: info.Size()}, nil
}

// open starts reading from the beginning.
func (s source) open() (io.ReadCloser, error) {
	if s.Path == "" {
		return io.NopCloser(rand.NewChaCha8(s.Seed)), nil
	}
	f, err := os.Open(s.Path)
	if err != nil {
		return nil, fmt.Errorf("open the data: %w", err)
	}
	return f, nil
}

// fill reads the next len(b) bytes. A file that has become shorter is an error.
func (s source) fill(r io.Reader, b []byte) error {
	if _, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("read the data of %s: the file became shorter while the job ran: %w", s.name(), err)
	}
	return nil
}

// name describes the source to the user.
func (s source) name() string {
	if s.Path == "" {
		return "random data"
	}
	return s.Path
}
