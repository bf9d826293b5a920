package xfer

import (
	"errors"
	"fmt"
	"log/slog"
)

// Part says which part of the protocol recorded bytes are, because the bytes themselves do not show it. See [Describe].
type Part uint8

// The parts.
const (
	PartRequest Part = iota // the private data of a connection request
	PartAnswer              // of an accepted connection
	PartRefusal             // of a refused one
	PartBasic               // a message of the basic protocol
	PartFast                // a message of the fast protocol
)

// Describe returns the name and the fields of recorded bytes, for programs that decode captures. The bytes may have any contents; an error says
// that they are not such a part. Texts in the fields are those of the peer: they may have any characters.
func Describe(p Part, b []byte) (name string, fields []slog.Attr, err error) {
	switch p {
	case PartBasic:
		m, n := parseBasic(b)
		if n < 0 {
			return "", nil, fmt.Errorf("%d bytes that are no message of the basic protocol", len(b))
		}
		switch m.id {
		case basicMR:
			fields = []slog.Attr{slog.Uint64("address", m.remote.Addr), slog.Uint64("key", uint64(m.remote.RKey))}
		case basicFailed:
			fields = describeError(m.why)
		}
		return basicName(m.id), fields, nil
	case PartFast:
		m, n := parseFast(b)
		if n < 0 {
			return "", nil, fmt.Errorf("%d bytes that are no message of the fast protocol", len(b))
		}
		return fastNames[m.kind], describeFast(m), nil
	default: // private data
	}
	if !isOurs(b) {
		return "", nil, errors.New("private data of another program")
	}
	switch p {
	case PartRequest:
		h, err := parseHello(b)
		if err != nil {
			return "", nil, err
		}
		fields := []slog.Attr{slog.Uint64("file", h.size), slog.Bool("basic", h.basic), slog.Bool("fast", h.fast), slog.String("digest", string(h.digest))}
		if h.stream {
			fields = append(fields, slog.Bool("stream", true))
		}
		if h.pull {
			fields = append(fields, slog.Bool("pull", true))
		}
		return "offer", fields, nil
	case PartAnswer:
		a, err := parseAnswer(b)
		if err != nil {
			return "", nil, err
		}
		return "choice", []slog.Attr{slog.String("transfer", a.protocol.String()), slog.Uint64("chunk", uint64(a.chunk)), slog.Uint64("buffers", uint64(a.buffers))}, nil
	default: // a refusal
	}
	v, ok := parseRefusal(b)
	if !ok {
		return "", nil, errors.New("a refusal without its reason")
	}
	return "refusal", describeError(v), nil
}

func describeError(v errorMessage) []slog.Attr {
	return []slog.Attr{slog.String("code", v.code.String()), slog.String("text", v.text)}
}

// describeFast returns the fields that a message of its kind has.
func describeFast(m fastMessage) []slog.Attr {
	switch m.kind {
	case fastOpen:
		fields := []slog.Attr{slog.String("name", string(m.tail))}
		if m.number|uint64(m.word) != 0 { // the bytes of the head, by which the receiver chooses, and the wishes; in a pull, the bytes of the file, and a part of the length of the head
			fields = append(fields, slog.Uint64("bytes", m.number), slog.Uint64("word", uint64(m.word)))
		}
		return fields
	case fastLayout:
		return []slog.Attr{slog.Uint64("address", m.number), slog.Uint64("key", uint64(m.word)), slog.Uint64("buffer", uint64(m.length)), slog.Uint64("buffers", uint64(m.count))}
	case fastChunk:
		return []slog.Attr{slog.Uint64("index", m.number), slog.Uint64("length", uint64(m.length))}
	case fastCredit:
		return []slog.Attr{slog.Uint64("buffers", uint64(m.count))}
	case fastWant:
		return []slog.Attr{slog.Uint64("ranges", uint64(m.count)), slog.Bool("last", m.word&1 != 0)}
	case fastNote:
		return []slog.Attr{slog.Uint64("index", m.number), slog.Int("length", len(m.tail)), slog.Uint64("spared", uint64(m.word))}
	case fastRequest:
		return []slog.Attr{slog.String("operation", RequestOp(m.word).String()), slog.Uint64("piece", uint64(m.count)), slog.String("path", string(m.tail))}
	case fastAttr:
		return []slog.Attr{slog.Uint64("time", m.number), slog.Uint64("mode", uint64(m.count))}
	case fastFailed:
		if v, n := parseErrorMessage(m.tail); n >= 0 {
			return describeError(v)
		}
		return nil
	}
	return []slog.Attr{slog.Uint64("file", m.number)} // END, DONE
}
