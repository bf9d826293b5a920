package call

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codec"
	"cinnabar/codec/hgproc"
)

// Limits of a list of types, which bound the memory that the list itself takes. The arguments and results are bounded by the engine.
const (
	maxTypes = 64
	maxArray = 1 << 20  // elements
	maxFixed = 64 << 20 // bytes of all variables together
)

// baseTypes are the types of --in and --out, under the names of this command and those of Mercury's proc routines.
var baseTypes = map[string]reflect.Type{
	"bool": reflect.TypeFor[bool](), "hg_bool_t": reflect.TypeFor[bool](),
	"int8": reflect.TypeFor[int8](), "int8_t": reflect.TypeFor[int8](),
	"int16": reflect.TypeFor[int16](), "int16_t": reflect.TypeFor[int16](),
	"int32": reflect.TypeFor[int32](), "int32_t": reflect.TypeFor[int32](),
	"int64": reflect.TypeFor[int64](), "int64_t": reflect.TypeFor[int64](),
	"uint8": reflect.TypeFor[uint8](), "uint8_t": reflect.TypeFor[uint8](),
	"uint16": reflect.TypeFor[uint16](), "uint16_t": reflect.TypeFor[uint16](),
	"uint32": reflect.TypeFor[uint32](), "uint32_t": reflect.TypeFor[uint32](),
	"uint64": reflect.TypeFor[uint64](), "uint64_t": reflect.TypeFor[uint64](), "hg_size_t": reflect.TypeFor[uint64](),
	"float32": reflect.TypeFor[float32](), "float": reflect.TypeFor[float32](),
	"float64": reflect.TypeFor[float64](), "double": reflect.TypeFor[float64](),
	"string": reflect.TypeFor[string](), "hg_string_t": reflect.TypeFor[string](),
	"hg_const_string_t": reflect.TypeFor[hgproc.ConstString](), // two bytes behind the text differ from hg_string_t's
	"bulk":              bulkType, "hg_bulk_t": bulkType,
}

var bulkType = reflect.TypeFor[cinnabar.BulkHandle]()

// typeList is the value of --in or --out: a list of types, and the struct type that has a field of each, in the same order.
type typeList struct {
	names []string
	all   reflect.Type
}

// parseTypes reads a list of types, such as "uint32,string,bulk". A type may be followed by [N], an array of N elements without a count, and by [],
// a list with a count of 64 bits in front.
func parseTypes(option, list string) (typeList, error) {
	if list == "" {
		return typeList{all: reflect.TypeFor[struct{}]()}, nil
	}
	names := strings.Split(list, ",")
	if len(names) > maxTypes {
		return typeList{}, cli.Usagef("%s has %d types; at most %d are possible", option, len(names), maxTypes)
	}
	fields := make([]reflect.StructField, len(names))
	var size uintptr
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
		t, tag, err := parseType(names[i])
		if err != nil {
			return typeList{}, cli.Usagef("%s: type %d, %q: %w", option, i+1, names[i], err)
		}
		if size += t.Size(); size > maxFixed {
			return typeList{}, cli.Usagef("%s: types 1 to %d take %d bytes; at most %d are possible", option, i+1, size, maxFixed)
		}
		fields[i] = reflect.StructField{Name: "V" + strconv.Itoa(i+1), Type: t, Tag: tag}
	}
	return typeList{names: names, all: reflect.StructOf(fields)}, nil
}

// parseType reads one type.
func parseType(name string) (reflect.Type, reflect.StructTag, error) {
	base, suffix, many := strings.Cut(name, "[")
	t, ok := baseTypes[base]
	if !ok {
		return nil, "", errors.New("unknown; known are bool, int8 to int64, uint8 to uint64, float32, float64, string and bulk, or int8_t, hg_size_t, hg_string_t and so on, with [] or [N] behind; commas separate types")
	}
	if !many {
		return t, "", nil
	}
	if t == bulkType {
		return nil, "", errors.New("memory has no lists; name bulk several times")
	}
	count, rest, closed := strings.Cut(suffix, "]")
	switch {
	case !closed || rest != "":
		return nil, "", errors.New("want one pair of brackets at the end, as in uint32[4] or string[]")
	case count == "":
		return reflect.SliceOf(t), `proc:"counted=uint64"`, nil
	}
	n, err := strconv.ParseUint(count, 10, 32)
	if err != nil || n == 0 || n > maxArray {
		return nil, "", fmt.Errorf("%q elements; want 1 to %d", count, maxArray)
	}
	return reflect.ArrayOf(int(n), t), "", nil
}

// bulks returns the number of memories among the types.
func (l typeList) bulks() (n int) {
	for i := range l.all.NumField() {
		if l.all.Field(i).Type == bulkType {
			n++
		}
	}
	return n
}

// arguments reads a JSON array that has a value for each type except bulk. The fields of type bulk get the handles, in their order.
func (l typeList) arguments(text string, handles []cinnabar.BulkHandle) (message, error) {
	m := message{value: reflect.New(l.all)}
	var values []json.RawMessage
	want := len(l.names) - len(handles)
	if text != "" {
		d := json.NewDecoder(strings.NewReader(text))
		if err := d.Decode(&values); err != nil {
			return m, cli.Usagef("--args %s is no JSON array: %w; want %d values in brackets, strings in double quotes, as in '[1, \"a\"]'", text, err, want)
		}
		if rest := strings.TrimSpace(text[d.InputOffset():]); rest != "" {
			return m, cli.Usagef("--args: at byte %d: %q stands behind the array", d.InputOffset(), rest)
		}
	}
	if len(values) != want {
		return m, cli.Usagef("--args has %d values; --in has %d types beside bulk", len(values), want)
	}
	for i, name := range l.names {
		to := m.value.Elem().Field(i)
		if to.Type() == bulkType {
			to.Set(reflect.ValueOf(handles[0]))
			handles = handles[1:]
			continue
		}
		number := want - len(values) + 1
		if err := setValue(to, values[0]); err != nil {
			return m, cli.Usagef("--args: value %d, a %s: %w", number, name, err)
		}
		values = values[1:]
	}
	return m, nil
}

// setValue stores a JSON value in a variable. It refuses null except for pointers, and arrays that are longer or shorter than an array variable, because package
// json ignores null, drops the further elements of a long array, and sets those that a short one lacks to zero.
func setValue(to reflect.Value, text json.RawMessage) error {
	switch null := bytes.Equal(bytes.TrimSpace(text), []byte("null")); {
	case to.Type() == bulkType:
		return errors.New("memory is no value; leave it out, and name a file by --bulk-in or --bulk-out")
	case to.Kind() == reflect.Pointer && null:
		to.SetZero()
		return nil
	case null:
		return errors.New("null is no value")
	case to.Kind() == reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		return setValue(to.Elem(), text)
	case to.Kind() == reflect.Struct:
		return setFields(to, text)
	case to.Kind() == reflect.Map:
		return setMap(to, text)
	}
	if k := to.Kind(); k == reflect.Array || k == reflect.Slice && to.Type().Elem().Kind() != reflect.Uint8 {
		var elements []json.RawMessage
		if err := json.Unmarshal(text, &elements); err != nil {
			return err
		}
		if k == reflect.Slice {
			to.Set(reflect.MakeSlice(to.Type(), len(elements), len(elements)))
		} else if len(elements) != to.Len() {
			return fmt.Errorf("%d elements instead of %d", len(elements), to.Len())
		}
		for i, e := range elements {
			if err := setValue(to.Index(i), e); err != nil {
				return fmt.Errorf("element %d: %w", i+1, err)
			}
		}
		return nil
	}
	return json.Unmarshal(text, to.Addr().Interface())
}

// results decodes the bytes of a response. rest is the number of bytes behind the values.
func (l typeList) results(m message) (values []any, rest int, err error) {
	into := reflect.New(l.all)
	n, err := codec.Decode(m.codec, m.raw, into.Interface())
	if err != nil {
		return nil, 0, fmt.Errorf("the response does not have the types of --out %s: %w; its %d bytes are %s", strings.Join(l.names, ","), err, len(m.raw), beginning(m.raw))
	}
	for i := range l.names {
		values = append(values, plain(into.Elem().Field(i)))
	}
	return values, len(m.raw) - n, nil
}

// beginning returns the first bytes of b in hexadecimal digits.
func beginning(b []byte) string {
	const most = 64
	if len(b) > most {
		return hex.EncodeToString(b[:most]) + "..."
	}
	return hex.EncodeToString(b)
}

// plain returns a value as package json can print it: handles as text, and the floating-point numbers that JSON does not have as strings.
func plain(v reflect.Value) any {
	if h, ok := v.Interface().(cinnabar.BulkHandle); ok {
		return map[string]any{"bytes": h.Len(), "mode": h.Mode().String()}
	}
	switch k := v.Kind(); {
	case k == reflect.Struct:
		return plainFields(v)
	case k == reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return plain(v.Elem())
	case k == reflect.Map:
		return plainMap(v)
	case k == reflect.Complex64 || k == reflect.Complex128:
		return fmt.Sprint(v.Complex())
	case k == reflect.Float32 || k == reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return strconv.FormatFloat(f, 'g', -1, 64)
		}
	case k == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return v.Bytes() // in base64, as --args has it
	case k == reflect.Array || k == reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(v.Index(i))
		}
		return list
	}
	return v.Interface()
}

// message is the argument or the result of a call. Its types are known at run time only.
type message struct {
	value reflect.Value // of the argument: a pointer to a struct
	codec codec.Codec   // of the result
	raw   []byte        // of the result: all of its bytes
}

// AppendProcWith implements [codec.AppenderWith].
func (m message) AppendProcWith(c codec.Codec, b []byte) ([]byte, error) {
	return codec.Append(c, b, m.value.Interface())
}

// DecodeProcWith implements [codec.DecoderWith]. It keeps a copy of all bytes, because the types belong to the call and not to the Go type.
func (m *message) DecodeProcWith(c codec.Codec, b []byte) (int, error) {
	m.codec, m.raw = c, slices.Clone(b)
	return len(b), nil
}
