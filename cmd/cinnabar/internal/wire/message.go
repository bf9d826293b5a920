package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// message is a message of a capture: one line of the output.
type message struct {
	packet    int // number of the packet that has its last byte
	time      time.Time
	seconds   float64 // since the first packet
	from, to  string
	protocol  string
	operation string
	size      uint64 // in its protocol, with headers; of a read or write the bytes of memory
	call      int    // number of the call that it belongs to; 0: none
	rpc       uint64 // id of the RPC of that call
	fields    []field
}

// field is a further value of a message: a uint64, an id, or a text, which may be a peer's.
type field struct {
	name  string
	value any
}

// id is a number that is printed in hexadecimal.
type id uint64

func (v id) String() string { return fmt.Sprintf("0x%016x", uint64(v)) }

// key is a number that is printed in hexadecimal, with no more digits than it has.
type key uint64

func (v key) String() string { return fmt.Sprintf("0x%x", uint64(v)) }

func (m *message) add(name string, value any) { m.fields = append(m.fields, field{name, value}) }

// addAttrs adds fields that another package has read.
func (m *message) addAttrs(list []slog.Attr) {
	for _, a := range list {
		switch v := a.Value.Any().(type) {
		case uint64:
			if a.Key == "key" || a.Key == "address" || a.Key == "call-id" {
				m.add(a.Key, key(v))
			} else {
				m.add(a.Key, v)
			}
		case int64:
			m.add(a.Key, uint64(v))
		default:
			m.add(a.Key, a.Value.String())
		}
	}
}

// malformed makes m the report of bytes that cannot be read.
func (m *message) malformed(err error) {
	m.operation = "malformed"
	m.add("problem", err.Error())
}

// text returns the operation and the fields.
func (m *message) text() string {
	var b strings.Builder
	b.WriteString(m.operation)
	for _, f := range m.fields {
		b.WriteByte(' ')
		b.WriteString(f.name)
		b.WriteByte('=')
		b.WriteString(word(f.value))
	}
	return b.String()
}

// word returns a value as one word of printable characters.
func word(v any) string {
	switch v := v.(type) {
	case uint64:
		return strconv.FormatUint(v, 10)
	case fmt.Stringer:
		return v.String()
	}
	s := fmt.Sprint(v)
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' || r == '"' || r == '=' }) {
		return cli.Printable(strconv.Quote(s))
	}
	return s
}

// line is a message as JSON.
type line struct {
	Packet      int            `json:"packet"`
	Time        *time.Time     `json:"time,omitempty"`
	Seconds     float64        `json:"seconds"`
	Source      string         `json:"source"`
	Destination string         `json:"destination"`
	Protocol    string         `json:"protocol"`
	Operation   string         `json:"operation"`
	Size        uint64         `json:"size"`
	Call        int            `json:"call,omitempty"`
	Fields      map[string]any `json:"fields"`
}

// printer writes messages.
type printer struct {
	w      io.Writer
	asJSON bool
}

func (p *printer) print(m *message) error {
	if !p.asJSON {
		call := ""
		if m.call > 0 {
			call = fmt.Sprintf(" call=%d", m.call)
		}
		_, err := fmt.Fprintf(p.w, "%6d %11.6f %s > %s %s size=%d%s %s\n", m.packet, m.seconds, m.from, m.to, m.protocol, m.size, call, m.text())
		return err
	}
	l := line{Packet: m.packet, Seconds: m.seconds, Source: m.from, Destination: m.to, Protocol: m.protocol, Operation: m.operation,
		Size: m.size, Call: m.call, Fields: make(map[string]any, len(m.fields))}
	if !m.time.IsZero() {
		l.Time = &m.time
	}
	for _, f := range m.fields {
		name := f.name
		for n := 2; l.Fields[name] != nil; n++ { // a message may have several pieces
			name = f.name + "_" + strconv.Itoa(n)
		}
		if v, ok := f.value.(fmt.Stringer); ok {
			l.Fields[name] = v.String()
		} else {
			l.Fields[name] = f.value
		}
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.w, "%s\n", cli.PrintableJSON(b))
	return err
}
