package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// Limits of a document.
const (
	maxBytes = 1 << 20
	maxDepth = 32
)

// kind is the type of a JSON value.
type kind uint8

const (
	null kind = iota
	boolean
	number
	text
	array
	object
)

func (k kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// node is a JSON value.
type node struct {
	kind   kind
	truth  bool
	text   string // of strings, and of numbers as they were written
	items  []node
	fields []field
}

type field struct {
	name  string
	value node
}

// describe is the node in an error's words. Long strings are cut.
func (n node) describe() string {
	switch n.kind {
	case boolean:
		return strconv.FormatBool(n.truth)
	case number:
		return cut(n.text)
	case text:
		return "the string " + strconv.Quote(cut(n.text))
	default:
		return n.kind.String()
	}
}

func cut(s string) string {
	const most = 64
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// append writes the node without spaces, the keys in their order.
func (n node) append(b []byte) []byte {
	switch n.kind {
	case boolean:
		return strconv.AppendBool(b, n.truth)
	case number:
		return append(b, n.text...)
	case text:
		return appendString(b, n.text)
	case array:
		b = append(b, '[')
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.append(b)
		}
		return append(b, ']')
	case object:
		b = append(b, '{')
		for i, f := range n.fields {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, f.name), ':')
			b = f.value.append(b)
		}
		return append(b, '}')
	case null:
	}
	return append(b, "null"...)
}

// appendString writes a string as JSON that leaves HTML's characters alone, as C does.
func appendString(b []byte, s string) []byte {
	var w bytes.Buffer
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string has an encoding, and a buffer takes it
	return append(b, bytes.TrimSuffix(w.Bytes(), []byte("\n"))...)
}

// parseTree reads a document. Anything behind it is an error.
func parseTree(document []byte) (node, error) {
	if len(document) > maxBytes {
		return node{}, &Error{Reason: fmt.Sprintf("the document has %d bytes; at most %d", len(document), maxBytes)}
	}
	var raw json.RawMessage
	if err := json.Unmarshal(document, &raw); err != nil {
		return node{}, syntaxError(err)
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	n, err := parseNode(d, "", 0)
	if err != nil {
		return node{}, err
	}
	return n, nil
}

// syntaxError returns an Error with the offset of the first byte that is no JSON.
func syntaxError(err error) *Error {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return &Error{Reason: fmt.Sprintf("no JSON at byte %d: %v", s.Offset, err)}
	}
	return &Error{Reason: "no JSON: " + err.Error()}
}

// parseNode reads one value; path is where it stands.
func parseNode(d *json.Decoder, path string, depth int) (node, error) {
	if depth > maxDepth {
		return node{}, &Error{Key: path, Reason: fmt.Sprintf("nested more than %d deep", maxDepth)}
	}
	t, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return node{}, syntaxError(err)
	}
	switch v := t.(type) {
	case bool:
		return node{kind: boolean, truth: v}, nil
	case json.Number:
		return node{kind: number, text: v.String()}, nil
	case string:
		return node{kind: text, text: v}, nil
	case json.Delim:
		if v == '[' {
			return parseArray(d, path, depth)
		}
		return parseObject(d, path, depth)
	}
	return node{}, nil
}

func parseArray(d *json.Decoder, path string, depth int) (node, error) {
	n := node{kind: array}
	for d.More() {
		item, err := parseNode(d, fmt.Sprintf("%s[%d]", path, len(n.items)), depth+1)
		if err != nil {
			return node{}, err
		}
		n.items = append(n.items, item)
	}
	return n, endOf(d)
}

func parseObject(d *json.Decoder, path string, depth int) (node, error) {
	n := node{kind: object}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return node{}, syntaxError(err)
		}
		name, _ := t.(string) // always a string, because the first reading has accepted the document
		key := join(path, name)
		if seen[name] {
			return node{}, &Error{Key: key, Reason: "occurs twice; keep one"}
		}
		seen[name] = true
		value, err := parseNode(d, key, depth+1)
		if err != nil {
			return node{}, err
		}
		n.fields = append(n.fields, field{name, value})
	}
	return n, endOf(d)
}

// endOf takes the closing bracket.
func endOf(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		return syntaxError(err)
	}
	return nil
}

// join is the path of a key in the object at path. A key with characters that a terminal would act upon is quoted.
func join(path, name string) string {
	name = cut(name)
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}
