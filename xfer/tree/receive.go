package tree

import (
	"fmt"

	"cinnabar/xfer"
)

// Sink stores one tree at the receiver. One goroutine at a time calls it. Its methods may use the ctx of the Open function that called Receive; this ctx ends with the transfer.
type Sink interface {
	// Begin is called first, with the whole manifest, which has no empty names, no dot and dotdot, and no slash or NUL in a name, and is
	// otherwise unchecked input of the peer. An error refuses the tree, before any data was stored; xfer's codes in it reach the sender.
	Begin(m *Manifest) error
	// Write stores data of file entry at an offset. Files come in the order of the manifest and one after another, their data from the
	// beginning to the end. Files without data are not written to.
	Write(entry int, b []byte, offset int64) error
	// Commit is called when all data has come and the digest was compared, and gives the tree its name.
	Commit() error
	// Discard is called instead of Commit, after a Commit that failed, and after an error of Begin. It is not called if the manifest was refused before Begin.
	Discard() error
}

// Receive returns the file of a transfer that stores a tree in a sink, for the Open function of an xfer.Receiver. size is the size that the
// sender has announced.
func Receive(sink Sink, size int64, l Limits) (xfer.File, error) {
	l = l.filled()
	left := l.Memory
	take := func(cost int64) error {
		if left -= cost; left < 0 {
			return failf(xfer.CodeTooLarge, "the manifest needs more than %d bytes, the limit of this receiver; send parts of the tree, or raise Limits.Memory", l.Memory)
		}
		return nil
	}
	return newIncoming(sink, size, newParser(l, take))
}

// incoming is a tree that is received: first its manifest, then its data.
type incoming struct {
	sink  Sink
	p     *parser
	size  int64
	at    int64 // bytes that have come
	begun bool
	next  cursor
	head  int64 // bytes of the manifest, if the receiver chooses; 0: it does not
}

func newIncoming(sink Sink, size int64, p *parser) (*incoming, error) {
	if size < 0 {
		return nil, failf(xfer.CodeUnsupported, "a tree needs the fast protocol, because its size must be known before")
	}
	return &incoming{sink: sink, p: p, size: size}, nil
}

// WriteAt takes the next bytes.
func (f *incoming) WriteAt(b []byte, offset int64) (n int, err error) {
	if f.head > 0 && f.begun && offset >= f.at { // the bytes between were not wanted
		f.next.skip(offset - f.head)
		f.at = offset
	}
	if offset != f.at {
		return 0, failf(xfer.CodeProtocol, "the data of the tree comes at offset %d; %d is due", offset, f.at)
	}
	if !f.p.done {
		if n, err = f.p.feed(b); err != nil {
			return 0, err
		}
		if f.p.done {
			if err := f.begin(f.at + int64(n)); err != nil {
				return 0, err
			}
		}
	}
	for n < len(b) {
		i, at, length, ok := f.next.next()
		if !ok {
			return n, failf(xfer.CodeProtocol, "there is data behind that of the last file")
		}
		k := int(min(int64(len(b)-n), length))
		taken, err := f.whole(i, at, b[n:n+k])
		if err == nil && !taken {
			err = f.sink.Write(i, b[n:n+k], at)
		}
		if err != nil {
			return n, err
		}
		f.next.advance(int64(k))
		n += k
	}
	f.at += int64(n)
	return n, f.flush()
}

// begin gives the sink the manifest, which has so many bytes.
func (f *incoming) begin(length int64) error {
	if f.p.m.Data != f.size-length {
		return failf(xfer.CodeProtocol, "the manifest announces %d bytes of data; the transfer has %d", f.p.m.Data, f.size-length)
	}
	if f.head > 0 && f.head != length {
		return failf(xfer.CodeProtocol, "the manifest has %d bytes; the head of the tree was said to have %d", length, f.head)
	}
	f.begun = true
	f.next = cursor{m: f.p.m}
	return f.sink.Begin(f.p.m)
}

// Commit gives the tree its name.
func (f *incoming) Commit() error {
	if !f.begun {
		return failf(xfer.CodeProtocol, "the transfer has ended inside the manifest")
	}
	return f.sink.Commit()
}

// Discard removes the tree.
func (f *incoming) Discard() error {
	if !f.begun {
		return nil
	}
	if err := f.sink.Discard(); err != nil {
		return fmt.Errorf("remove the incomplete tree: %w", err)
	}
	return nil
}
