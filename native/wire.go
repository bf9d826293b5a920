package native

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"time"

	"cinnabar/codes"
)

// version is the version of the envelopes that this package writes and accepts.
const version = 1

// The first bytes of each envelope. Numbers are little endian, as those of Margo's headers on the wire.
//
//	0        4         5       6        8
//	+--------+---------+-------+--------+----
//	| magic  | version | flags | length | ...
//	+--------+---------+-------+--------+----
//
// length is that of the envelope in bytes, from the magic to the first byte of arguments or results; of a cancel it is the number of ids.
const (
	offVersion = 4
	offFlags   = 5
	offLength  = 6
	prefixSize = 8
)

const (
	magicRequest  = "cnrq"
	magicResponse = "cnrs"
	magicCancel   = "cnca"
)

// Flags of requests.
const (
	flagCompressed byte = 1 << iota // arguments or results are compressed
	flagAccepts                     // results may be compressed
	flagTrace
	flagStream   // the call opens a stream
	requestFlags = flagCompressed | flagAccepts | flagTrace | flagStream
)

// Further flags of responses.
const (
	flagFailure   byte = 1 << 1 // the envelope carries an error in place of results
	flagTruncated byte = 1 << 2 // text or details of the error are left out

	responseFlags = flagCompressed | flagFailure | flagTruncated
)

// Limits of the parts of an envelope.
const (
	maxText        = 4096     // bytes of the text of an error
	maxDetails     = 16       // details of an error
	maxDetailBytes = 16 << 10 // bytes of all details of an error, with their names
	maxName        = 64       // bytes of the name of a detail or a Compressor
	maxCancels     = 256      // ids in one cancel
)

// wireError is the error of an envelope that is refused.
type wireError struct {
	code codes.Code
	text string
}

func (e *wireError) Error() string { return e.text }
func (e *wireError) Unwrap() error { return e.code }

// Errors of bytes that no program has written as an envelope. There are two, because a handler may return the error of a response that it
// has received, and the caller of that handler understands envelopes.
var (
	errForeignRequest = &wireError{codes.ProtoNoSupport,
		"the request has no envelope of package native: the caller calls the RPC without that package"}
	errForeignResponse = &wireError{codes.ProtoNoSupport,
		"the response has no envelope of package native: the server serves the RPC without that package"}
)

func malformed(format string, args ...any) error {
	return &wireError{codes.ProtocolError, "malformed native envelope: " + fmt.Sprintf(format, args...)}
}

// checkPrefix checks the first bytes of an envelope and returns its flags and its length. from is the side that wrote it.
func checkPrefix(b []byte, magic, from string, flags byte) (got byte, length int, err error) {
	switch {
	case len(b) >= prefixSize && string(b[:offVersion]) == magic:
	case magic == magicResponse:
		return 0, 0, errForeignResponse
	default:
		return 0, 0, errForeignRequest
	}
	switch {
	case b[offVersion] != version:
		age := "an old"
		if b[offVersion] > version {
			age = "a newer"
		}
		return 0, 0, &wireError{codes.ProtoNoSupport,
			fmt.Sprintf("the %s speaks %s version of native envelopes, %d; this program speaks version %d, so update the older one", from, age, b[offVersion], version)}
	case b[offFlags]&^flags != 0:
		return 0, 0, malformed("flags %#02x, of which %#02x are known", b[offFlags], flags)
	}
	return b[offFlags], int(binary.LittleEndian.Uint16(b[offLength:])), nil
}

// reader reads the fields of an envelope. After the first field that does not fit, bad is set and all further fields are 0.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	field := r.b[:n:n]
	r.b = r.b[n:]
	return field
}

func (r *reader) uint8() int {
	if f := r.take(1); f != nil {
		return int(f[0])
	}
	return 0
}

func (r *reader) uint16() int {
	if f := r.take(2); f != nil {
		return int(binary.LittleEndian.Uint16(f))
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if f := r.take(4); f != nil {
		return binary.LittleEndian.Uint32(f)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if f := r.take(8); f != nil {
		return binary.LittleEndian.Uint64(f)
	}
	return 0
}

// requestHead is the envelope of a request.
//
//	8         16          24
//	+---------+-----------+-------+------------+--------------+----------
//	| call id | remaining | trace | compressor | size, if     | metadata
//	|         | ns        | if    | if asked   | compressed   |
//	+---------+-----------+-------+------------+--------------+----------
type requestHead struct {
	id         uint64        // not 0; another one for each call of the process
	remaining  time.Duration // 0: the caller has no deadline
	trace      Trace         // zero: none
	compressor string        // name of the Compressor of the caller's RPC; empty: none
	stream     bool          // the call opens a stream, and has no arguments
	accepts    bool          // results may be compressed
	compressed bool          // the arguments are
	size       uint64        // bytes of the arguments before compression; 0 unless compressed
	metadata   Metadata
}

const requestFixed = 24

// appendRequestHead appends the envelope h, which is valid.
func appendRequestHead(b []byte, h *requestHead) []byte {
	start := len(b)
	var flags byte
	if h.compressed {
		flags |= flagCompressed
	}
	if h.accepts {
		flags |= flagAccepts
	}
	if !h.trace.IsZero() {
		flags |= flagTrace
	}
	if h.stream {
		flags |= flagStream
	}
	b = append(b, magicRequest...)
	b = append(b, version, flags, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, h.id)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.remaining))
	if !h.trace.IsZero() {
		b = append(b, h.trace.TraceID[:]...)
		b = append(b, h.trace.SpanID[:]...)
		b = append(b, h.trace.Flags)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(h.trace.State)))
		b = append(b, h.trace.State...)
	}
	if h.compressed || h.accepts {
		b = append(b, byte(len(h.compressor)))
		b = append(b, h.compressor...)
	}
	if h.compressed {
		b = binary.LittleEndian.AppendUint64(b, h.size)
	}
	return endHead(h.metadata.append(b), start)
}

// endHead writes the length of the envelope that begins at start and ends with b.
func endHead(b []byte, start int) []byte {
	binary.LittleEndian.PutUint16(b[start+offLength:], uint16(len(b)-start))
	return b
}

// peekRequest returns the fixed fields of a request's envelope.
func peekRequest(b []byte) (id uint64, remaining time.Duration, err error) {
	if _, _, err := checkPrefix(b, magicRequest, "caller", requestFlags); err != nil {
		return 0, 0, err
	}
	if len(b) < requestFixed {
		return 0, 0, malformed("%d bytes, fewer than the %d of its fixed part", len(b), requestFixed)
	}
	id, ns := binary.LittleEndian.Uint64(b[prefixSize:]), binary.LittleEndian.Uint64(b[prefixSize+8:])
	switch {
	case id == 0:
		return 0, 0, malformed("the call id is 0")
	case ns > math.MaxInt64:
		return 0, 0, malformed("remaining time of %d ns, at most %d", ns, int64(math.MaxInt64))
	}
	return id, time.Duration(ns), nil
}

// isPlain reports whether the envelope of a request, which peekRequest has accepted, has nothing behind its fixed fields but the count of no metadata.
func isPlain(b []byte) bool {
	return b[offFlags] == 0 && binary.LittleEndian.Uint16(b[offLength:]) == requestFixed+1
}

// parseRequestHead reads the envelope of a request and returns its length.
func parseRequestHead(b []byte) (h requestHead, n int, err error) {
	if h.id, h.remaining, err = peekRequest(b); err != nil {
		return h, 0, err
	}
	flags, n, _ := checkPrefix(b, magicRequest, "caller", requestFlags)
	if n < requestFixed || n > len(b) {
		return h, 0, malformed("length %d, the message has %d", n, len(b))
	}
	r := reader{b: b[requestFixed:n]}
	if flags&flagTrace != 0 {
		if h.trace, err = parseTraceField(&r); err != nil {
			return h, 0, err
		}
	}
	h.compressed, h.accepts, h.stream = flags&flagCompressed != 0, flags&flagAccepts != 0, flags&flagStream != 0
	if h.compressed || h.accepts {
		h.compressor = string(r.take(r.uint8()))
		if !r.bad && !isName(h.compressor, maxName) {
			return h, 0, malformed("%q is no name of a Compressor", h.compressor)
		}
	}
	if h.compressed {
		h.size = r.uint64()
	}
	if h.metadata, err = parseMetadata(&r); err != nil {
		return h, 0, err
	}
	return h, n, r.end()
}

// end returns the error of fields that do not fit into the envelope, or do not fill it.
func (r *reader) end() error {
	switch {
	case r.bad:
		return malformed("a field runs past its end")
	case len(r.b) > 0:
		return malformed("%d bytes behind its last field", len(r.b))
	}
	return nil
}

// parseTraceField reads the trace context of a request.
func parseTraceField(r *reader) (t Trace, err error) {
	copy(t.TraceID[:], r.take(len(t.TraceID)))
	copy(t.SpanID[:], r.take(len(t.SpanID)))
	t.Flags = byte(r.uint8())
	t.State = string(r.take(r.uint16()))
	if r.bad {
		return t, r.end()
	}
	if err := t.check(); err != nil {
		return t, malformed("%v", err)
	}
	return t, nil
}

// responseHead is the envelope of a response.
//
//	8
//	+------------------+----------+-------------------
//	| size, if         | metadata | code, text, details,
//	| compressed       |          | if the call failed
//	+------------------+----------+-------------------
type responseHead struct {
	compressed bool
	size       uint64 // bytes of the results before compression; 0 unless compressed
	metadata   Metadata
	failure    *failure // nil: results follow
}

// failure is an error on the wire.
type failure struct {
	code      codes.Code // not 0
	text      string
	details   []rawDetail
	truncated bool
}

// rawDetail is an encoded detail of an error.
type rawDetail struct {
	name string
	data []byte
}

// appendResponseHead appends the envelope h, which is valid.
func appendResponseHead(b []byte, h *responseHead) []byte {
	start := len(b)
	var flags byte
	if h.compressed {
		flags |= flagCompressed
	}
	if h.failure != nil {
		flags |= flagFailure
		if h.failure.truncated {
			flags |= flagTruncated
		}
	}
	b = append(b, magicResponse...)
	b = append(b, version, flags, 0, 0)
	if h.compressed {
		b = binary.LittleEndian.AppendUint64(b, h.size)
	}
	b = h.metadata.append(b)
	if f := h.failure; f != nil {
		b = binary.LittleEndian.AppendUint32(b, uint32(f.code))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(f.text)))
		b = append(b, f.text...)
		b = append(b, byte(len(f.details)))
		for _, d := range f.details {
			b = append(b, byte(len(d.name)))
			b = append(b, d.name...)
			b = binary.LittleEndian.AppendUint16(b, uint16(len(d.data)))
			b = append(b, d.data...)
		}
	}
	return endHead(b, start)
}

// parseResponseHead reads the envelope of a response and returns its length. Details refer to the memory of b.
func parseResponseHead(b []byte) (h responseHead, n int, err error) {
	flags, n, err := checkPrefix(b, magicResponse, "server", responseFlags)
	if err != nil {
		return h, 0, err
	}
	if n < prefixSize || n > len(b) {
		return h, 0, malformed("length %d, the message has %d", n, len(b))
	}
	r := reader{b: b[prefixSize:n]}
	if h.compressed = flags&flagCompressed != 0; h.compressed {
		h.size = r.uint64()
	}
	if h.metadata, err = parseMetadata(&r); err != nil {
		return h, 0, err
	}
	switch {
	case flags&flagFailure != 0 && h.compressed, flags&flagFailure == 0 && flags&flagTruncated != 0:
		return h, 0, malformed("flags %#02x contradict each other", flags)
	case flags&flagFailure != 0:
		if h.failure, err = parseFailure(&r); err != nil {
			return h, 0, err
		}
		h.failure.truncated = flags&flagTruncated != 0
	}
	return h, n, r.end()
}

// parseFailure reads the error of a response.
func parseFailure(r *reader) (*failure, error) {
	f := &failure{code: codes.Code(r.uint32())}
	f.text = string(r.take(r.uint16()))
	count, total := r.uint8(), 0
	switch {
	case r.bad:
		return nil, r.end()
	case f.code == codes.Code(0):
		return nil, malformed("an error with code 0, which is no error")
	case len(f.text) > maxText:
		return nil, malformed("the text of an error has %d bytes, at most %d", len(f.text), maxText)
	case count > maxDetails:
		return nil, malformed("an error has %d details, at most %d", count, maxDetails)
	}
	for range count {
		name := string(r.take(r.uint8()))
		data := r.take(r.uint16())
		if r.bad {
			return nil, r.end()
		}
		if !isName(name, maxName) {
			return nil, malformed("%q is no name of a detail", name)
		}
		if total += len(name) + len(data); total > maxDetailBytes {
			return nil, malformed("the details of an error have more than %d bytes", maxDetailBytes)
		}
		f.details = append(f.details, rawDetail{name, data})
	}
	return f, nil
}

// appendCancel appends a cancel of up to maxCancels calls.
func appendCancel(b []byte, ids []uint64) []byte {
	b = append(b, magicCancel...)
	b = append(b, version, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(ids)))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint64(b, id)
	}
	return b
}

// parseCancel reads a cancel.
func parseCancel(b []byte) (ids []uint64, err error) {
	_, n, err := checkPrefix(b, magicCancel, "caller", 0)
	switch {
	case err != nil:
		return nil, err
	case n == 0 || n > maxCancels:
		return nil, malformed("a cancel of %d calls; it has 1 to %d", n, maxCancels)
	case len(b) != prefixSize+8*n:
		return nil, malformed("a cancel of %d calls has %d bytes, not %d", n, prefixSize+8*n, len(b))
	}
	ids = make([]uint64, n)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint64(b[prefixSize+8*i:])
	}
	return ids, nil
}

// isName reports whether s is a name of metadata, of a detail or of a Compressor: 1 to most characters of a to z, 0 to 9, '.', '_' and '-'.
func isName(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// Describe returns the kind and the fields of an envelope, a cancel or a frame of a stream at the start of recorded bytes, which stand
// behind Margo's header, for programs that decode captures. The bytes may have any contents; an error says that they are none of these.
// Texts in the fields are those of the peer: they may have any characters.
func Describe(b []byte) (kind string, fields []slog.Attr, err error) {
	if len(b) < prefixSize {
		return "", nil, errForeignRequest
	}
	switch magic := string(b[:offVersion]); magic {
	case magicRequest:
		h, n, err := parseRequestHead(b)
		if err != nil {
			return "", nil, err
		}
		fields = []slog.Attr{slog.Uint64("call-id", h.id), slog.Duration("remaining", h.remaining), slog.Int("arguments", len(b)-n)}
		if h.stream {
			return "stream", fields, nil
		}
		return "call", fields, nil
	case magicResponse:
		h, n, err := parseResponseHead(b)
		if err != nil {
			return "", nil, err
		}
		if h.failure != nil {
			return "failure", []slog.Attr{slog.String("error", h.failure.code.Error()), slog.String("text", h.failure.text)}, nil
		}
		return "results", []slog.Attr{slog.Int("results", len(b)-n)}, nil
	case magicCancel:
		ids, err := parseCancel(b)
		if err != nil {
			return "", nil, err
		}
		return "cancel", []slog.Attr{slog.Uint64("call-id", ids[0]), slog.Int("calls", len(ids))}, nil
	case magicPut, magicCredit, magicGet, magicElements:
		f, err := parseFrame(b, magic)
		if err != nil {
			return "", nil, err
		}
		names := map[string]string{magicPut: "put", magicCredit: "credit", magicGet: "get", magicElements: "elements"}
		return names[magic], []slog.Attr{slog.Uint64("call-id", f.id), slog.Uint64("sequence", f.seq), slog.Uint64("count", uint64(f.size.count)), slog.Bool("end", f.end())}, nil
	}
	return "", nil, errForeignRequest
}
