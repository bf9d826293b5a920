package native

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"

	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

// Compressor compresses arguments and results. [Gzip] is one. An implementation is safe for concurrent use.
type Compressor interface {
	// Name stands for the format on the wire: 1 to 64 of the characters a to z, 0 to 9, '.', '_' and '-'.
	Name() string
	// Compress appends src in compressed form to dst and returns the extended buffer.
	Compress(dst, src []byte) ([]byte, error)
	// Decompress fills dst, which is as long as the data was before compression. A peer has sent src, so it may have any bytes. Decompress
	// returns an error if src has more data or less. It must not allocate memory for data beyond dst.
	Decompress(dst, src []byte) error
}

// compressLeast is the length in bytes from which arguments and results are compressed, because compression seldom makes shorter ones shorter.
const compressLeast = 256

// squeeze returns body in compressed form, or nil if that is not shorter.
func (s *spec) squeeze(body []byte) ([]byte, error) {
	if len(body) < compressLeast {
		return nil, nil
	}
	b, err := s.compressor.Compress(nil, body)
	if err != nil {
		return nil, fmt.Errorf("compress with %q: %w", s.compressor.Name(), err)
	}
	if len(b) >= len(body) {
		return nil, nil
	}
	return b, nil
}

// unpack decompresses body, which has size bytes then.
func (s *spec) unpack(name string, size uint64, body []byte, limits envelope.Limits) ([]byte, error) {
	if !s.compresses(name) {
		return nil, &wireError{codes.ProtoNoSupport, fmt.Sprintf("the message is compressed with %q, which RPC %q does not declare here; add native.WithCompressor", name, s.name)}
	}
	if size == 0 || size > uint64(max(limits.MaxBytes, 0)) {
		return nil, &wireError{codes.Overflow, fmt.Sprintf("%d bytes that stand for %d after decompression, at most %d are accepted (Config.MaxOverflow)", len(body), size, limits.MaxBytes)}
	}
	if err := limits.Budget.Charge(int64(size)); err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if err := s.compressor.Decompress(b, body); err != nil {
		return nil, fmt.Errorf("%w: decompress %d bytes to %d with %q: %w", codes.ProtocolError, len(body), size, name, err)
	}
	return b, nil
}

// compresses reports whether the RPC has a Compressor of that name.
func (s *spec) compresses(name string) bool {
	return s.compressor != nil && s.compressor.Name() == name
}

// Gzip returns the Compressor "gzip" of package compress/gzip, with a level of that package. It panics if there is no such level.
func Gzip(level int) Compressor {
	if _, err := gzip.NewWriterLevel(io.Discard, level); err != nil {
		panic("native: " + err.Error())
	}
	return &gzipper{level: level}
}

// gzipper implements [Compressor].
type gzipper struct {
	level   int
	writers sync.Pool // of *gzip.Writer
	readers sync.Pool // of *gzip.Reader
}

// Name implements [Compressor].
func (*gzipper) Name() string { return "gzip" }

// Compress implements [Compressor].
func (g *gzipper) Compress(dst, src []byte) ([]byte, error) {
	b := bytes.NewBuffer(dst)
	w, _ := g.writers.Get().(*gzip.Writer)
	if w == nil {
		w, _ = gzip.NewWriterLevel(b, g.level) // Gzip has checked the level
	} else {
		w.Reset(b)
	}
	defer g.writers.Put(w)
	if _, err := w.Write(src); err != nil {
		return dst, err
	}
	if err := w.Close(); err != nil {
		return dst, err
	}
	return b.Bytes(), nil
}

// Causes of the errors of Decompress.
var (
	errMoreData = errors.New("there is more data than announced")
	errTrailing = errors.New("there are bytes behind the compressed data")
)

// Decompress implements [Compressor].
func (g *gzipper) Decompress(dst, src []byte) error {
	in := bytes.NewReader(src)
	r, _ := g.readers.Get().(*gzip.Reader)
	if r == nil {
		r = new(gzip.Reader)
	}
	if err := r.Reset(in); err != nil {
		return err
	}
	defer g.readers.Put(r)
	r.Multistream(false)
	if _, err := io.ReadFull(r, dst); err != nil {
		return err
	}
	switch _, err := io.ReadFull(r, make([]byte, 1)); {
	case err == nil:
		return errMoreData
	case err != io.EOF:
		return err
	case in.Len() > 0:
		return errTrailing
	}
	return nil
}
