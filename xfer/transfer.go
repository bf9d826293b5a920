package xfer

import (
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Protocol is a protocol of the transfer of files.
type Protocol uint8

const (
	// Auto lets the two sides choose: Fast where both have it.
	Auto Protocol = iota
	// Basic is the paper's protocol of 13 steps: one buffer, one chunk at a time.
	Basic
	// Fast uses several buffers in turn and overlaps disks and network.
	Fast
)

// String returns the name that commands use.
func (p Protocol) String() string {
	switch p {
	case Auto:
		return "auto"
	case Basic:
		return "basic"
	case Fast:
		return "fast"
	}
	return "protocol " + strconv.Itoa(int(p))
}

// Meta is the metadata of a file besides name and size. Zero values are not sent. Only
// programs that use this package send and receive it.
type Meta struct {
	Mode    fs.FileMode // permission bits
	ModTime time.Time   // of the years 1678 to 2261; others are not sent
}

// Source is a file to be sent.
type Source struct {
	// Name is the file's name at the receiver: 1 to 255 bytes without NUL. A [Dir]
	// refuses more names than that, see [CheckName].
	Name string
	// Data is read from several offsets in ascending order by one goroutine. A transfer of several lanes (Sender.Lanes) reads it in any order, by one goroutine at a
	// time unless Concurrent is true.
	Data io.ReaderAt
	// Concurrent allows several goroutines to read Data and Choice.SumData at once, as an *os.File allows. The lanes of a transfer then do so.
	Concurrent bool
	// Size is the number of bytes to send. Send fails with [CodeChanged] if Data does not end there.
	Size int64
	// Stream is the data of a source of unknown length, such as a pipe. Data is nil then, and Size is not used. A goroutine reads it ahead from
	// the acceptance of the receiver on. It may pause for any time. If Send ends while a Read blocks, Send does not wait for it, and
	// the goroutine ends when that Read does. Receivers of earlier versions refuse streams with [CodeUnsupported], and so do programs of the paper.
	Stream io.Reader
	Meta   Meta
	// Choice lets the receiver choose the ranges that cross; nil: all bytes cross. It is nil for a Stream.
	Choice *Choice
}

// Result has the facts of a transfer. After a failure it has those up to the failure.
type Result struct {
	Name     string
	Peer     netip.AddrPort
	Size     int64 // bytes of the file that the receiver acknowledged, or stored; with Kept
	Kept     int64 // bytes of the file that did not cross, because the receiver had them or left them out (Source.Choice)
	Protocol Protocol
	// Immediate is true if chunks were announced by immediate data, as in the
	// paper, and false if a message behind each write announced them.
	Immediate bool
	Buffers   int // of the receiver
	Chunk     int // size of each in bytes
	Chunks    int64
	Lanes     int    // connections that have carried the file: the first, and each further one that has carried a part; before the end, those that were granted; 0: one
	Digest    Digest // NoDigest with Basic; "" if nothing was agreed
	// Sum is the digest of the file, on which both sides agree if the transfer has
	// succeeded; zero if the protocol is Basic or Digest is NoDigest, if only a part of the file crossed (Kept), or if several lanes carried it, each with a digest of its own. A receiver that does
	// not trust the sender computes it from the file: see the package's section on the
	// fast protocol.
	Sum      [SumLen]byte
	Pulled   bool          // the side that connected has received, see [Puller]
	Duration time.Duration // from the connection to the receiver's last message
}

// Progress observes one transfer. One goroutine at a time calls its methods, which must not
// block. Finish is called last, once, and only after Start.
type Progress interface {
	// Start begins the transfer. Result has the agreed parameters; its Size is that of
	// the whole file, -1 if the sender has not sent it.
	Start(Result)
	// Advance adds n bytes that the receiver has stored, as far as this side knows.
	Advance(n int64)
	// Finish ends the transfer, with the result of Send or Serve.
	Finish(Result, error)
}

// OpenFile opens the file at path for sending, under the last element of its
// path. With preserve its mode and time go along. The caller closes the file
// after Send. OpenFile refuses files that are not regular, without waiting: a FIFO has
// no size, and its open would not return before a writer opens it.
func OpenFile(path string, preserve bool) (Source, *os.File, error) {
	// A FIFO is not even opened, since its writer would notice.
	info, err := os.Stat(path)
	if err != nil {
		return Source{}, nil, err
	}
	if err := wantRegular(path, info); err != nil {
		return Source{}, nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openAtOnce, 0)
	if err != nil {
		return Source{}, nil, err
	}
	if info, err = f.Stat(); err == nil { // of the open file, because the path may have changed
		err = wantRegular(path, info)
	}
	if err != nil {
		_ = f.Close() // it was only looked at
		return Source{}, nil, err
	}
	src := Source{Name: filepath.Base(path), Data: f, Size: info.Size(), Concurrent: true}
	if preserve {
		src.Meta = Meta{Mode: info.Mode().Perm(), ModTime: info.ModTime()}
	}
	return src, f, nil
}

// wantRegular refuses files that have no size beforehand.
func wantRegular(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file; its size is not known beforehand", path)
	}
	return nil
}
