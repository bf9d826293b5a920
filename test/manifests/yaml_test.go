// Package manifests checks the files of contrib for containers and clusters.
package manifests

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// yamlLine is a line of a document without its indent and its comment.
type yamlLine struct {
	indent, number int
	text           string
}

// yamlReader reads the part of YAML that the manifests use: maps, lists, plain and double-quoted scalars, and lists in brackets on one line. It refuses
// all else, such as anchors and tabs.
type yamlReader struct {
	lines []yamlLine
}

// parseYAML returns the documents of a file: maps, lists, strings, whole numbers and booleans.
func parseYAML(text string) ([]any, error) {
	var docs []any
	var r yamlReader
	end := func() error {
		if len(r.lines) == 0 {
			return nil
		}
		v, err := r.value(r.lines[0].indent)
		if err == nil && len(r.lines) > 0 {
			err = r.errorf("a line of another indent")
		}
		docs, r.lines = append(docs, v), nil
		return err
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\n ")
		body := strings.TrimLeft(line, " ")
		switch {
		case line == "---":
			if err := end(); err != nil {
				return nil, err
			}
		case body == "" || body[0] == '#':
		case strings.ContainsAny(body, "\t&*|>%@`!") || strings.Contains(body, " #"):
			return nil, fmt.Errorf("line %d: %q is beyond the part of YAML that the manifests use", number, body)
		default:
			r.lines = append(r.lines, yamlLine{len(line) - len(body), number, body})
		}
	}
	return docs, end()
}

func (r *yamlReader) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", r.lines[0].number, fmt.Sprintf(format, args...))
}

// value reads the value of which the lines have an indent.
func (r *yamlReader) value(indent int) (any, error) {
	if strings.HasPrefix(r.lines[0].text, "- ") {
		return r.list(indent)
	}
	return r.mapping(indent)
}

func (r *yamlReader) list(indent int) (list []any, err error) {
	for len(r.lines) > 0 && r.lines[0].indent == indent && strings.HasPrefix(r.lines[0].text, "- ") {
		l := &r.lines[0]
		rest := strings.TrimPrefix(l.text, "- ")
		var v any
		if _, _, isMap := cutKey(rest); isMap {
			l.text, l.indent = rest, indent+2
			v, err = r.mapping(indent + 2)
		} else {
			v, err = r.scalar(rest)
			r.lines = r.lines[1:]
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (r *yamlReader) mapping(indent int) (map[string]any, error) {
	m := map[string]any{}
	for len(r.lines) > 0 && r.lines[0].indent == indent {
		key, rest, ok := cutKey(r.lines[0].text)
		if !ok {
			return nil, r.errorf("%q is no key with a value", r.lines[0].text)
		}
		if _, twice := m[key]; twice {
			return nil, r.errorf("the key %s is there twice", key)
		}
		var err error
		if rest != "" {
			m[key], err = r.scalar(rest)
			r.lines = r.lines[1:]
		} else {
			at := r.lines[0]
			r.lines = r.lines[1:]
			if len(r.lines) == 0 || r.lines[0].indent <= indent {
				return nil, fmt.Errorf("line %d: the key %s has no value", at.number, key)
			}
			m[key], err = r.value(r.lines[0].indent)
		}
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// cutKey cuts a line at the colon behind its key.
func cutKey(text string) (key, rest string, ok bool) {
	if key, ok = strings.CutSuffix(text, ":"); ok {
		return key, "", !strings.ContainsAny(key, "\"' ")
	}
	key, rest, ok = strings.Cut(text, ": ")
	return key, strings.TrimSpace(rest), ok && !strings.ContainsAny(key, "\"' ")
}

// scalar reads a value on one line.
func (r *yamlReader) scalar(text string) (any, error) {
	switch {
	case text[0] == '[' || text[0] == '"': // the same as in JSON
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return nil, r.errorf("%s: %v", text, err)
		}
		return v, nil
	case text == "true" || text == "false":
		return text == "true", nil
	case strings.ContainsAny(text, "'{}[]\"") || strings.HasSuffix(text, ":"):
		return nil, r.errorf("%q is beyond the part of YAML that the manifests use", text)
	}
	base := 10
	if len(text) > 1 && text[0] == '0' {
		base = 8 // as Kubernetes reads it
	}
	if n, err := strconv.ParseInt(text, base, 32); err == nil {
		return n, nil
	}
	return text, nil
}

func TestParseYAML(t *testing.T) {
	docs, err := parseYAML("# comment\na: 1\nb:\n  - c: x y\n    d: [\"e\", \"f\"]\n  - g\n---\nh: true\ni: 0440\n")
	text, _ := json.Marshal(docs)
	if want := `[{"a":1,"b":[{"c":"x y","d":["e","f"]},"g"]},{"h":true,"i":288}]`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	for _, text := range []string{"a: &b 1", "a:\n\tb: 1", "a: 1\na: 2", "a:", "a:\nb: 1", "a: [1", "a: {b: 1}", "a", "a: 1\n   b: 2", "- a: 1\n b: 2", "a: 'x'", "a: x # y", "a: \"x"} {
		if docs, err := parseYAML(text); err == nil {
			t.Errorf("%q gives %v", text, docs)
		}
	}
}

// FuzzParseYAML reads any text without a panic.
func FuzzParseYAML(f *testing.F) {
	f.Add("a:\n  - b: 1\n    c: [\"d\"]\n---\ne: f\n")
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := parseYAML(text)
		if _, jerr := json.Marshal(docs); err == nil && jerr != nil {
			t.Error(jerr)
		}
	})
}
