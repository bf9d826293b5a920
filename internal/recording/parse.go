package recording

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// ReadFile reads a recording.
func ReadFile(path string) (*Recording, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes; a recording has at most %d", path, info.Size(), maxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Parse parses a recording. b may have any contents; Parse does not keep it.
func Parse(b []byte) (*Recording, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%d bytes; a recording has at most %d", len(b), maxFile)
	}
	var p parser
	for i, l := range bytes.Split(b, []byte{'\n'}) {
		if err := p.line(string(l)); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if len(p.r.Conversations) == 0 {
		return nil, errors.New("there is no conversation")
	}
	return &p.r, nil
}

// parser is the state between two lines.
type parser struct {
	r     Recording
	total int
}

func (p *parser) line(l string) error {
	switch {
	case l == "":
		return nil
	case l[0] == '#':
		p.r.Comments = append(p.r.Comments, strings.TrimPrefix(l[1:], " "))
		return nil
	case l == "conn" || strings.HasPrefix(l, "conn "):
		c, err := parseConn(l)
		p.r.Conversations = append(p.r.Conversations, c)
		return err
	}
	if len(p.r.Conversations) == 0 {
		return errors.New("a message stands before the first line conn")
	}
	m, err := parseMessage(l)
	if err != nil {
		return err
	}
	if p.total += m.Size(); p.total > maxTotal {
		return fmt.Errorf("the messages have more than %d bytes", maxTotal)
	}
	c := &p.r.Conversations[len(p.r.Conversations)-1]
	c.Messages = append(c.Messages, m)
	return nil
}

func parseConn(l string) (c Conversation, err error) {
	for _, w := range strings.Fields(l)[1:] {
		key, value, _ := strings.Cut(w, "=")
		to := map[string]*netip.AddrPort{"dialer": &c.Dialer, "listener": &c.Listener}[key]
		if to == nil {
			return c, fmt.Errorf("%.40q is neither dialer= nor listener=", w)
		}
		if *to, err = netip.ParseAddrPort(value); err != nil {
			return c, err
		}
	}
	return c, nil
}

func parseMessage(l string) (m Message, err error) {
	way, rest, _ := strings.Cut(l, " ")
	switch way {
	case ">":
		m.FromDialer = true
	case "<":
	default:
		return m, fmt.Errorf("%.40q begins no message", l)
	}
	if rest == "close" {
		m.End = true
		return m, nil
	}
	size := 0
	for w := range strings.FieldsSeq(rest) {
		it, err := parseItem(w)
		if err != nil {
			return m, err
		}
		if size += it.Size; size > maxMessage {
			return m, fmt.Errorf("a message has more than %d bytes", maxMessage)
		}
		m.Items = append(m.Items, it)
	}
	if size == 0 {
		return m, errors.New("a message has no bytes")
	}
	return m, nil
}

// Append appends the recording as it stands in a file.
func (r *Recording) Append(b []byte) []byte {
	for _, c := range r.Comments {
		b = append(append(append(b, "# "...), c...), '\n')
	}
	for i := range r.Conversations {
		b = r.Conversations[i].append(b)
	}
	return b
}

func (c *Conversation) append(b []byte) []byte {
	b = append(b, "conn"...)
	if c.Dialer.IsValid() {
		b = fmt.Appendf(b, " dialer=%v", c.Dialer)
	}
	if c.Listener.IsValid() {
		b = fmt.Appendf(b, " listener=%v", c.Listener)
	}
	b = append(b, '\n')
	for i := range c.Messages {
		b = c.Messages[i].append(b)
	}
	return b
}

func (m *Message) append(b []byte) []byte {
	if m.FromDialer {
		b = append(b, '>')
	} else {
		b = append(b, '<')
	}
	if m.End {
		b = append(b, " close"...)
	}
	for _, it := range m.Items {
		b = append(append(b, ' '), it.String()...)
	}
	return append(b, '\n')
}
