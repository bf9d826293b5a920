package conf

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Error is the reason for which Parse refuses a document.
type Error struct {
	Key    string // as in "argobots.pools[1].kind"; empty if it is about the whole document
	Reason string // with the valid values and the remedy
}

func (e *Error) Error() string {
	if e.Key == "" {
		return e.Reason
	}
	return e.Key + ": " + e.Reason
}

// reader takes the fields of one object. The first fault is kept, and readers of the whole document share it;
// values that are read after it do not matter.
type reader struct {
	path  string
	node  node
	known []string // keys that were asked for
	fault **Error
}

// failf refuses the document for a key of this object; an empty key is the object itself.
func (r *reader) failf(key, format string, args ...any) {
	if *r.fault != nil {
		return
	}
	path := r.path
	if key != "" {
		path = join(path, key)
	}
	*r.fault = &Error{Key: path, Reason: fmt.Sprintf(format, args...)}
}

// get returns the value of a key, and whether it is there and of the kind.
func (r *reader) get(key string, want kind) (node, bool) {
	n, ok := r.any(key)
	if ok && n.kind != want {
		r.failf(key, "want %v, got %s", want, n.describe())
		return node{}, false
	}
	return n, ok
}

// any returns the value of a key of any kind but null, which counts as absent.
func (r *reader) any(key string) (node, bool) {
	r.known = append(r.known, key)
	for _, f := range r.node.fields {
		if f.name == key {
			return f.value, f.value.kind != null
		}
	}
	return node{}, false
}

// boolean reads a truth value, if it is there.
func (r *reader) boolean(key string, to *bool) {
	if n, ok := r.get(key, boolean); ok {
		*to = n.truth
	}
}

// string reads a string, if it is there.
func (r *reader) string(key string, to *string) {
	if n, ok := r.get(key, text); ok {
		*to = n.text
	}
}

// enum reads one of several strings, if it is there.
func (r *reader) enum(key string, to *string, values ...string) {
	n, ok := r.get(key, text)
	if !ok {
		return
	}
	if !slices.Contains(values, n.text) {
		r.failf(key, "want %s, got %s", strings.Join(values, ", "), n.describe())
		return
	}
	*to = n.text
}

// integer reads a whole number from least to most, if it is there.
func (r *reader) integer(key string, to *int64, least, most int64) {
	if n, ok := r.get(key, number); ok {
		r.number(key, n, to, least, most)
	}
}

// number takes a whole number.
func (r *reader) number(key string, n node, to *int64, least, most int64) {
	v, err := strconv.ParseInt(n.text, 10, 64)
	switch {
	case err != nil && strings.ContainsAny(n.text, ".eE"):
		r.failf(key, "want a whole number, got %s", n.describe())
	case err != nil || v < least || v > most:
		r.failf(key, "want a number from %d to %d, got %s", least, most, n.describe())
	default:
		*to = v
	}
}

// duration reads a length of time such as "1.5s".
func (r *reader) duration(key string, to *time.Duration) {
	n, ok := r.get(key, text)
	if !ok {
		return
	}
	d, err := time.ParseDuration(n.text)
	if err != nil {
		r.failf(key, `want a length of time such as "10s" or "50us", got %s`, n.describe())
		return
	}
	*to = d
}

// span reads a length of time that is not negative, if it is there.
func (r *reader) span(key string, to *time.Duration) {
	if r.duration(key, to); *to < 0 {
		r.failf(key, "want a length of time of 0 or more, got %v", *to)
	}
}

// raw keeps an object as it is.
func (r *reader) raw(key string, to *json.RawMessage) {
	if n, ok := r.get(key, object); ok {
		*to = n.append(nil)
	}
}

// object returns a reader of an object; without one, of an empty one and false.
func (r *reader) object(key string) (*reader, bool) {
	n, ok := r.get(key, object)
	return &reader{path: join(r.path, key), node: n, fault: r.fault}, ok
}

// each calls f for the objects of an array, if it is there, of at most most.
func (r *reader) each(key string, most int, f func(*reader)) {
	n, ok := r.get(key, array)
	if !ok {
		return
	}
	if len(n.items) > most {
		r.failf(key, "has %d elements; at most %d", len(n.items), most)
		return
	}
	for i, item := range n.items {
		path := fmt.Sprintf("%s[%d]", join(r.path, key), i)
		sub := &reader{path: path, node: item, fault: r.fault}
		if item.kind != object {
			sub.failf("", "want an object, got %s", item.describe())
			return
		}
		f(sub)
		sub.end()
	}
}

// removed are keys of older releases of Margo.
var removed = map[string]string{
	"enable_diagnostics":               "Margo has no diagnostics any more; use the key monitoring, and Config.Monitor or Engine.Stats",
	"enable_profiling":                 "Margo has no profiling of its own any more; use the key monitoring, and Config.Monitor or Engine.Stats",
	"profile_sparkline_timeslice_msec": "Margo has no profiling of its own any more; use the key monitoring, and Config.Monitor",
	"output_dir":                       "Margo has no such key any more; the program decides where files go",
}

// end refuses keys that no call has asked for.
func (r *reader) end() {
	for _, f := range r.node.fields {
		if slices.Contains(r.known, f.name) {
			continue
		}
		if why := removed[f.name]; why != "" && r.path == "" {
			r.failf(f.name, "%s", why)
			return
		}
		known := slices.Compact(slices.Sorted(slices.Values(r.known)))
		r.failf(f.name, "no such key; there are %s", strings.Join(known, ", "))
		return
	}
}
