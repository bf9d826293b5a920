package regmem

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Buffer is a bytes.Buffer in registered memory: a device can send the written bytes, or those read from a file or a
// connection, from where they lie. It grows by taking a larger block and copying, and moves the unread bytes to the start of
// the block when that makes room enough; [Buffer.Copied] counts both. Grow beforehand avoids that.
//
// A Buffer is not safe for concurrent use. It owns its block until Take or Close.
type Buffer[R Region] struct {
	from   Allocator[R]
	block  Block[R]
	mem    []byte // of block
	read   int    // bytes of mem already read
	filled int    // bytes of mem written
	copied int64
}

// leastGrowth is the size in bytes of the first block, and the least that ReadFrom offers to a reader.
const leastGrowth = 512

// NewBuffer returns an empty buffer that takes its blocks from an allocator. It has no block until the first write or Grow.
func NewBuffer[R Region](from Allocator[R]) *Buffer[R] { return &Buffer[R]{from: from} }

// Len returns how many bytes were written and not read yet.
func (b *Buffer[R]) Len() int { return b.filled - b.read }

// Bytes returns the unread bytes. The slice is valid until the next call that writes, takes or closes.
func (b *Buffer[R]) Bytes() []byte { return b.mem[b.read:b.filled] }

// Copied returns how many bytes were copied within registered memory, to make room.
func (b *Buffer[R]) Copied() int64 { return b.copied }

// Block returns the block that Bytes lies in and how many bytes of it come before them. The buffer goes on to own it.
func (b *Buffer[R]) Block() (block Block[R], skip int) { return b.block, b.read }

// Take hands the block over, with the first n bytes of it written, and leaves an empty buffer. The caller frees it. Without
// anything written it is the zero Block.
func (b *Buffer[R]) Take() (block Block[R], n int) {
	block, n = b.block, b.filled
	b.block, b.mem, b.read, b.filled = Block[R]{}, nil, 0, 0
	return block, n
}

// Reset drops the written bytes and keeps the block.
func (b *Buffer[R]) Reset() { b.read, b.filled = 0, 0 }

// Close frees the block. The buffer is empty then, and may be used again.
func (b *Buffer[R]) Close() error {
	block, _ := b.Take()
	if block.IsZero() {
		return nil
	}
	return block.Free()
}

// Grow makes room for n more bytes without another copy.
func (b *Buffer[R]) Grow(n int) error {
	if n < 0 {
		return fmt.Errorf("grow a buffer by %d bytes", n)
	}
	return b.ensure(n)
}

// ensure makes room for n bytes behind the written ones.
func (b *Buffer[R]) ensure(n int) error {
	if n <= len(b.mem)-b.filled {
		return nil
	}
	if n > math.MaxInt-b.Len() {
		return fmt.Errorf("grow a buffer of %d bytes by %d: %w", b.Len(), n, ErrTooLarge)
	}
	if need := b.Len() + n; b.read == b.filled && need <= len(b.mem) || need <= len(b.mem)/2 {
		b.slide()
		return nil
	}
	larger, err := b.from.Alloc(max(b.Len()+n, 2*len(b.mem), leastGrowth))
	if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrFull) {
		larger, err = b.from.Alloc(b.Len() + n) // no more than needed
	}
	if err != nil {
		return fmt.Errorf("grow a buffer of %d bytes by %d: %w", b.Len(), n, err)
	}
	mem := larger.Bytes()
	if mem == nil {
		return errors.Join(fmt.Errorf("grow a buffer: the region of its allocator is closed: %w", ErrClosed), larger.Free())
	}
	kept := copy(mem, b.Bytes())
	b.copied += int64(kept)
	err = b.Close()
	b.block, b.mem, b.filled = larger, mem, kept
	return err
}

// slide moves the unread bytes to the start of the block, so that a buffer which is read as fast as it is written stays as
// large as it is.
func (b *Buffer[R]) slide() {
	kept := copy(b.mem, b.Bytes())
	b.copied += int64(kept)
	b.read, b.filled = 0, kept
}

// Write implements [io.Writer]. It writes all of p or nothing.
func (b *Buffer[R]) Write(p []byte) (int, error) {
	if err := b.ensure(len(p)); err != nil {
		return 0, err
	}
	n := copy(b.mem[b.filled:], p)
	b.filled += n
	return n, nil
}

// WriteString implements [io.StringWriter].
func (b *Buffer[R]) WriteString(s string) (int, error) {
	if err := b.ensure(len(s)); err != nil {
		return 0, err
	}
	n := copy(b.mem[b.filled:], s)
	b.filled += n
	return n, nil
}

// WriteByte implements [io.ByteWriter].
func (b *Buffer[R]) WriteByte(c byte) error {
	if err := b.ensure(1); err != nil {
		return err
	}
	b.mem[b.filled] = c
	b.filled++
	return nil
}

// Extend returns the next n bytes to be written in place, and counts them as written. They are not cleared, and are valid
// until the next call that writes.
func (b *Buffer[R]) Extend(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("extend a buffer by %d bytes", n)
	}
	if err := b.ensure(n); err != nil {
		return nil, err
	}
	b.filled += n
	return slices.Clip(b.mem[b.filled-n : b.filled]), nil
}

// ReadFrom implements [io.ReaderFrom]: r reads straight into registered memory.
func (b *Buffer[R]) ReadFrom(r io.Reader) (total int64, err error) {
	for empty := 0; ; {
		if err := b.ensure(leastGrowth); err != nil {
			return total, err
		}
		n, err := r.Read(b.mem[b.filled:])
		if n < 0 || n > len(b.mem)-b.filled {
			return total, fmt.Errorf("read into a buffer: the reader says that it read %d bytes into %d", n, len(b.mem)-b.filled)
		}
		b.filled += n
		total += int64(n)
		if empty++; n > 0 {
			empty = 0
		}
		switch {
		case err == io.EOF:
			return total, nil
		case err != nil:
			return total, err
		case empty >= 100:
			return total, io.ErrNoProgress
		}
	}
}

// Read implements [io.Reader].
func (b *Buffer[R]) Read(p []byte) (int, error) {
	if b.Len() == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, b.Bytes())
	b.read += n
	return n, nil
}

// WriteTo implements [io.WriterTo].
func (b *Buffer[R]) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.Bytes())
	if n < 0 || n > b.Len() {
		return 0, fmt.Errorf("write a buffer out: the writer says that it took %d of %d bytes", n, b.Len())
	}
	b.read += n
	if err == nil && b.Len() > 0 {
		err = io.ErrShortWrite
	}
	return int64(n), err
}
