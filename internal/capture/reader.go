package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// MaxPacket is the largest number of bytes of one packet in a file. Capturing programs write at most 262,144.
const MaxPacket = 1 << 18

// maxInterfaces is the largest number of interfaces of one section of a pcapng file.
const maxInterfaces = 1 << 12

// Packet is a packet of a file.
type Packet struct {
	Number int       // from 1
	Time   time.Time // zero: the file has none, or none of the years 1970 to 9999
	Link   LinkType
	Length int    // bytes of the packet on the network; Data may have fewer
	Data   []byte // until the next call of Next
}

// Error is an error in the bytes of a file.
type Error struct {
	Offset    int64 // of the part with the error, in bytes from the start of the file
	Problem   string
	Truncated bool // the file ends in the middle of a part
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at byte %d of the capture", e.Problem, e.Offset)
}

// Reader reads a file in the form pcap or pcapng.
type Reader struct {
	in     io.Reader
	offset int64 // of the next byte
	order  binary.ByteOrder
	next   func(*Reader, *Packet) (ok bool, err error) // reads one part of the file; ok: it was a packet
	number int
	buf    []byte
	err    error

	link  LinkType      // pcap
	unit  time.Duration // pcap: of the fraction of a second
	faces []face        // pcapng: the interfaces of the section
}

// face is an interface of a pcapng file.
type face struct {
	link   LinkType
	perSec uint64 // units of time stamps in a second
	offset int64  // seconds that are added to time stamps
	snap   uint32 // largest packet; 0: no limit
}

// The numbers that files begin with, as a big-endian program writes them.
const (
	magicMicro   = 0xa1b2c3d4
	magicNano    = 0xa1b23c4d
	magicSection = 0x0a0d0d0a // the same in both orders
	magicOrder   = 0x1a2b3c4d
)

// NewReader reads the beginning of a file. An error that is not of the type *Error is one of in.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{in: in}
	head, err := r.take(4, "file header")
	if err != nil {
		return nil, err
	}
	big, little := binary.BigEndian.Uint32(head), binary.LittleEndian.Uint32(head)
	switch {
	case big == magicSection:
		r.next = (*Reader).nextBlock
		return r, r.section(0)
	case big == magicMicro, big == magicNano:
		r.order = binary.BigEndian
	case little == magicMicro, little == magicNano:
		r.order = binary.LittleEndian
	default:
		return nil, &Error{Problem: fmt.Sprintf("a file that begins with %#08x, which is neither pcap nor pcapng", big)}
	}
	r.unit = time.Microsecond
	if big == magicNano || little == magicNano {
		r.unit = time.Nanosecond
	}
	if head, err = r.take(20, "file header"); err != nil {
		return nil, err
	}
	if major := r.order.Uint16(head); major != 2 {
		return nil, &Error{Offset: 4, Problem: fmt.Sprintf("version %d of pcap, of which version 2 is known", major)}
	}
	r.link = LinkType(r.order.Uint32(head[16:]) & 0xffff) // the upper bits describe frame checksums
	r.next = (*Reader).nextRecord
	return r, nil
}

// Next reads the next packet into p. It returns io.EOF at the end of the file, and an *Error with Truncated set if the file ends
// inside a part. After an error all calls return the same one.
func (r *Reader) Next(p *Packet) error {
	for r.err == nil {
		ok, err := r.next(r, p)
		if err != nil {
			r.err = err
		} else if ok {
			r.number++
			p.Number = r.number
			return nil
		}
	}
	return r.err
}

// take reads the next n bytes of a part into a buffer that the next call uses again. n is at most MaxPacket and some headers.
func (r *Reader) take(n int, part string) ([]byte, error) {
	if cap(r.buf) < n {
		r.buf = make([]byte, n, max(n, 1<<11))
	}
	at := r.offset
	got, err := io.ReadFull(r.in, r.buf[:n])
	r.offset += int64(got)
	if err != nil {
		return nil, ended(err, at, part)
	}
	return r.buf[:n], nil
}

// ended returns the error for a part that begins at byte at and cannot be read to its end.
func ended(err error, at int64, part string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &Error{Offset: at, Problem: "the file ends inside a " + part, Truncated: true}
	}
	return err
}

// begin reads the first n bytes of a part, before which the file may end.
func (r *Reader) begin(n int, part string) ([]byte, error) {
	at := r.offset
	b, err := r.take(n, part)
	if err != nil && r.offset == at {
		if e, ok := errors.AsType[*Error](err); ok && e.Truncated {
			return nil, io.EOF
		}
	}
	return b, err
}

// nextRecord reads a record of a pcap file:
//
//	0         4                       8         12        16
//	+---------+-----------------------+---------+---------+------
//	| seconds | fraction of a second  | in file | on wire | bytes
//	+---------+-----------------------+---------+---------+------
func (r *Reader) nextRecord(p *Packet) (bool, error) {
	at := r.offset
	head, err := r.begin(16, "record header")
	if err != nil {
		return false, err
	}
	sec, part := r.order.Uint32(head), r.order.Uint32(head[4:])
	kept, length := r.order.Uint32(head[8:]), r.order.Uint32(head[12:])
	if kept > MaxPacket {
		return false, &Error{Offset: at, Problem: fmt.Sprintf("a packet of %d bytes, of which %d are the most", kept, MaxPacket)}
	}
	data, err := r.take(int(kept), "packet")
	if err != nil {
		return false, err
	}
	*p = Packet{Time: time.Unix(int64(sec), int64(part)*int64(r.unit)).UTC(), Link: r.link, Length: wireLength(length, kept), Data: data}
	return true, nil
}

// wireLength is the length of a packet on the network, never below the part in the file.
func wireLength(length, kept uint32) int { return int(min(max(length, kept), 1<<24)) }

// Types of blocks of pcapng that are read. Others are skipped.
const (
	blockInterface = 1
	blockOld       = 2 // the obsolete block of a packet
	blockSimple    = 3
	blockPacket    = 6
)

// blockFrame is the number of bytes of a block's type and its two lengths.
const blockFrame = 12

// nextBlock reads a block of a pcapng file:
//
//	0      4               8
//	+------+---------------+------+---------------+
//	| type | length of all | body | length of all |
//	+------+---------------+------+---------------+
func (r *Reader) nextBlock(p *Packet) (bool, error) {
	at := r.offset
	head, err := r.begin(8, "block header")
	if err != nil {
		return false, err
	}
	if binary.BigEndian.Uint32(head) == magicSection {
		// take has read the length, which counts in the order of the section, too.
		return false, r.sectionWith(at, [4]byte(head[4:8]))
	}
	kind, length := r.order.Uint32(head), r.order.Uint32(head[4:])
	if length < blockFrame || length%4 != 0 {
		return false, &Error{Offset: at, Problem: fmt.Sprintf("a block of %d bytes", length)}
	}
	body := int64(length) - blockFrame
	switch kind {
	case blockInterface, blockOld, blockSimple, blockPacket:
		if body > MaxPacket+1<<16 {
			return false, &Error{Offset: at, Problem: fmt.Sprintf("a block of %d bytes, of which %d are the most", length, MaxPacket+1<<16+blockFrame)}
		}
	default:
		return false, r.skip(body+4, at)
	}
	b, err := r.take(int(body)+4, "block")
	if err != nil {
		return false, err
	}
	b = b[:body]
	switch kind {
	case blockInterface:
		return false, r.addInterface(b, at)
	case blockSimple:
		return r.simple(p, b, at)
	}
	return r.packet(p, b, kind, at)
}

// section reads the rest of a section header block whose type has been read, with the order of bytes in all blocks that follow.
func (r *Reader) section(at int64) error {
	length, err := r.take(4, "section header")
	if err != nil {
		return err
	}
	return r.sectionWith(at, [4]byte(length))
}

func (r *Reader) sectionWith(at int64, length [4]byte) error {
	mark, err := r.take(4, "section header")
	if err != nil {
		return err
	}
	switch {
	case binary.BigEndian.Uint32(mark) == magicOrder:
		r.order = binary.BigEndian
	case binary.LittleEndian.Uint32(mark) == magicOrder:
		r.order = binary.LittleEndian
	default:
		return &Error{Offset: at, Problem: "a section of pcapng without its order of bytes"}
	}
	n := r.order.Uint32(length[:])
	if n < 28 || n%4 != 0 {
		return &Error{Offset: at, Problem: fmt.Sprintf("a section header of %d bytes", n)}
	}
	r.faces = r.faces[:0]
	return r.skip(int64(n)-blockFrame, at)
}

// skip drops the next n bytes.
func (r *Reader) skip(n, at int64) error {
	got, err := io.CopyN(io.Discard, r.in, n)
	r.offset += got
	if err != nil {
		return ended(err, at, "block")
	}
	return nil
}

// addInterface reads a block that describes an interface: link type 2, reserved 2, snapshot length 4, options.
func (r *Reader) addInterface(b []byte, at int64) error {
	if len(b) < 8 {
		return &Error{Offset: at, Problem: fmt.Sprintf("an interface block of %d bytes", len(b)+blockFrame)}
	}
	if len(r.faces) == maxInterfaces {
		return &Error{Offset: at, Problem: fmt.Sprintf("more than %d interfaces", maxInterfaces)}
	}
	f := face{link: LinkType(r.order.Uint16(b)), snap: r.order.Uint32(b[4:]), perSec: 1_000_000}
	for o := b[8:]; len(o) >= 4; {
		code, n := r.order.Uint16(o), int(r.order.Uint16(o[2:]))
		if code == 0 || n > len(o)-4 {
			break
		}
		v := o[4 : 4+n]
		switch {
		case code == 9 && n == 1: // if_tsresol
			f.perSec = resolution(v[0])
		case code == 14 && n == 8: // if_tsoffset
			f.offset = int64(r.order.Uint64(v))
		}
		o = o[min(4+(n+3)/4*4, len(o)):]
	}
	r.faces = append(r.faces, f)
	return nil
}

// resolution returns the number of units in a second: a power of ten, or of two if bit 7 is set. One above 64 bits counts as the largest.
func resolution(v byte) uint64 {
	if v&0x80 != 0 {
		return 1 << min(v&0x7f, 63)
	}
	n := uint64(1)
	for range min(v, 19) {
		n *= 10
	}
	return n
}

// simple reads a block that has a packet without a time: length on the network 4, bytes.
func (r *Reader) simple(p *Packet, b []byte, at int64) (bool, error) {
	if len(b) < 4 || len(r.faces) == 0 {
		return false, &Error{Offset: at, Problem: "a simple packet block without an interface or a length"}
	}
	length := r.order.Uint32(b)
	kept := min(length, uint32(len(b)-4), MaxPacket)
	if s := r.faces[0].snap; s != 0 {
		kept = min(kept, s)
	}
	*p = Packet{Link: r.faces[0].link, Length: wireLength(length, kept), Data: b[4 : 4+kept]}
	return true, nil
}

// packet reads a block that has a packet: interface 4 (or interface 2 and drops 2), time 8, length in the file 4, length on the network 4,
// bytes, options.
func (r *Reader) packet(p *Packet, b []byte, kind uint32, at int64) (bool, error) {
	if len(b) < 20 {
		return false, &Error{Offset: at, Problem: fmt.Sprintf("a packet block of %d bytes", len(b)+blockFrame)}
	}
	id := r.order.Uint32(b)
	if kind == blockOld {
		id = uint32(r.order.Uint16(b))
	}
	if uint64(id) >= uint64(len(r.faces)) {
		return false, &Error{Offset: at, Problem: fmt.Sprintf("a packet of interface %d, and %d are described", id, len(r.faces))}
	}
	kept, length := r.order.Uint32(b[12:]), r.order.Uint32(b[16:])
	if uint64(kept) > uint64(len(b)-20) || kept > MaxPacket {
		return false, &Error{Offset: at, Problem: fmt.Sprintf("a packet of %d bytes in a block with room for %d", kept, len(b)-20)}
	}
	f := &r.faces[id]
	stamp := uint64(r.order.Uint32(b[4:]))<<32 | uint64(r.order.Uint32(b[8:]))
	*p = Packet{Time: f.time(stamp), Link: f.link, Length: wireLength(length, kept), Data: b[20 : 20+kept]}
	return true, nil
}

// maxSecond is the last second of the year 9999. Later times have no text in the form of RFC 3339.
const maxSecond = 253402300799

// time returns the time of a stamp, and none if it lies before 1970 or after the year 9999, because the stamp and the offset of the
// interface may have any values.
func (f *face) time(stamp uint64) time.Time {
	whole := stamp / f.perSec
	if whole > maxSecond || f.offset < -maxSecond || f.offset > maxSecond {
		return time.Time{}
	}
	second := int64(whole) + f.offset
	if second < 0 || second > maxSecond {
		return time.Time{}
	}
	high, low := bits.Mul64(stamp%f.perSec, uint64(time.Second))
	nanos, _ := bits.Div64(high, low, f.perSec) // high is below perSec, because the first factor is
	return time.Unix(second, int64(nanos)).UTC()
}
