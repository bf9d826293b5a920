package cereal

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// encoder writes one message. It never leaves its goroutine's stack.
type encoder struct {
	codec codec.Codec // for custom types
	b     []byte
	depth int

	// ids are the objects that shared pointers have led to, with the ids that they were given: 1, 2, 3 in the order
	// of their first mention (cereal::OutputArchive::registerSharedPointer).
	ids      map[object]uint32
	versions map[reflect.Type]ClassVersion // of classes of which a value has been written
}

// object is the target of a shared pointer. It holds the type because a struct and its first field have one address.
type object struct {
	at  uintptr
	typ reflect.Type
}

// AppendValue appends v, which is addressable, to b and returns the extended buffer.
func (n *node) AppendValue(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	e := encoder{codec: c, b: slices.Grow(b, n.min)}
	if err := e.append(n, v); err != nil {
		return nil, err
	}
	return e.b, nil
}

// append appends v, which is addressable.
func (e *encoder) append(n *node, v reflect.Value) error {
	switch n.op {
	case opStruct:
		return e.fields(n, v)
	case opString:
		e.size(v.Len())
		e.b = append(e.b, v.String()...)
	case opByteArray:
		e.b = append(e.b, v.Bytes()...)
	case opArray:
		return e.elems(n, v)
	case opByteSlice:
		e.size(v.Len())
		e.b = append(e.b, v.Bytes()...)
	case opSlice:
		return e.slice(n, v)
	case opMap:
		return e.mapping(n, v)
	case opOptional, opUnique, opShared:
		return e.pointer(n, v)
	case opVariant:
		return e.variant(n, v)
	case opVersion:
		return e.version(n, v)
	case opCustom:
		return e.custom(v.Addr().Interface())
	default:
		e.b = n.op.AppendScalar(e.b, v)
	}
	return nil
}

// size appends the count of elements (cereal::SizeTag).
func (e *encoder) size(n int) { e.b = binary.LittleEndian.AppendUint64(e.b, uint64(n)) }

// enter goes one level deeper; leave goes back.
func (e *encoder) enter() error {
	if e.depth++; e.depth > maxDepth {
		return tooDeep()
	}
	return nil
}

func (e *encoder) leave() { e.depth-- }

func tooDeep() error {
	return &codec.Error{
		Problem: fmt.Sprintf("the value is more than %d slices, maps and pointers deep", maxDepth),
		Remedy:  "a value that contains itself needs shared pointers; a long list is sent as a slice",
	}
}

func (e *encoder) fields(n *node, v reflect.Value) error {
	for i := range n.fields {
		f := &n.fields[i]
		fv := v.Field(f.index)
		if f.when != nil && !f.when.Holds(v) {
			if err := f.when.CheckUnsent(v, fv); err != nil {
				return codecplan.Under(err, f.name)
			}
			continue
		}
		if f.isScalar() {
			e.b = f.op.AppendScalar(e.b, fv)
			continue
		}
		if err := e.append(f.node, fv); err != nil {
			return codecplan.Under(err, f.name)
		}
	}
	return nil
}

func (e *encoder) slice(n *node, v reflect.Value) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	count := v.Len()
	e.size(count)
	start := len(e.b)
	if err := e.elems(n, v); err != nil {
		return err
	}
	if len(e.b)-start < count { // decoder.slice refuses such a count as a hostile one
		return tooSmall(count, len(e.b)-start)
	}
	return nil
}

func tooSmall(count, size int) error {
	return &codec.Error{
		Problem: fmt.Sprintf("%d elements took only %d bytes", count, size),
		Remedy:  "write at least a byte for each element of a container",
	}
}

// elems appends the elements of a slice or an array.
func (e *encoder) elems(n *node, v reflect.Value) error {
	if n.elem.isScalar() {
		e.scalars(n.elem, v)
		return nil
	}
	if n.elem.isEmpty() {
		return nil
	}
	for i := range v.Len() {
		if err := e.append(n.elem, v.Index(i)); err != nil {
			return codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return nil
}

// scalars appends the elements of a slice or an array of scalars.
func (e *encoder) scalars(elem *node, v reflect.Value) {
	count := v.Len()
	b := slices.Grow(e.b, count*elem.min)
	b, done := appendNumbers(b, v.Addr().Interface())
	if !done {
		for i := range count {
			b = elem.op.AppendScalar(b, v.Index(i))
		}
	}
	e.b = b
}

// entry is one of a map's. Its values cannot be found again by a key that is not a number.
type entry struct{ key, elem reflect.Value }

// mapping appends a map in the order of its keys, which is a std::map's.
func (e *encoder) mapping(n *node, v reflect.Value) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	entries := make([]entry, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		entries = append(entries, entry{it.Key(), it.Value()})
	}
	slices.SortFunc(entries, func(a, b entry) int { return n.key.compare(a.key, b.key) })
	e.size(len(entries))
	// The keys and elements of a map have no address, and append needs one.
	key, elem := reflect.New(n.key.typ).Elem(), reflect.New(n.elem.typ).Elem()
	for _, x := range entries {
		key.Set(x.key)
		elem.Set(x.elem)
		if err := e.append(n.key, key); err != nil {
			return codecplan.Under(err, keyStep(x.key))
		}
		if err := e.append(n.elem, elem); err != nil {
			return codecplan.Under(err, keyStep(x.key))
		}
	}
	return nil
}

// keyStep is a key as it stands in the path of an error.
func keyStep(key reflect.Value) string {
	const most = 20
	text := fmt.Sprint(key)
	if key.Kind() == reflect.String {
		text = strconv.Quote(text)
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return "[" + text + "]"
}

func (e *encoder) pointer(n *node, v reflect.Value) error {
	if n.op == opShared {
		return e.shared(n, v)
	}
	// One says whether there is none, the other whether there is one.
	there := !v.IsNil()
	e.b = codecplan.AppendBool(e.b, there == (n.op == opUnique))
	if !there {
		return nil
	}
	return e.pointee(n, v)
}

func (e *encoder) pointee(n *node, v reflect.Value) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	return e.append(n.elem, v.Elem())
}

// shared appends a shared pointer: 0 for none, a new id and the object at its first mention, the id alone later.
func (e *encoder) shared(n *node, v reflect.Value) error {
	if v.IsNil() {
		e.b = binary.LittleEndian.AppendUint32(e.b, 0)
		return nil
	}
	to := object{v.Pointer(), n.elem.typ}
	if id, known := e.ids[to]; known {
		e.b = binary.LittleEndian.AppendUint32(e.b, id)
		return nil
	}
	if e.ids == nil {
		e.ids = map[object]uint32{}
	}
	id := uint32(len(e.ids) + 1)
	e.ids[to] = id // before the object, which may lead back to itself
	e.b = binary.LittleEndian.AppendUint32(e.b, id|isNew)
	return e.pointee(n, v)
}

func (e *encoder) variant(n *node, v reflect.Value) error {
	which := -1
	for i := range n.fields {
		f := &n.fields[i]
		switch {
		case v.Field(f.index).IsNil():
		case which >= 0:
			return &codec.Error{
				Problem: fmt.Sprintf("both %s and %s of the variant are set", n.fields[which].name, f.name),
				Remedy:  "set one alternative",
			}
		default:
			which = i
		}
	}
	if which < 0 {
		return &codec.Error{Problem: fmt.Sprintf("no alternative of the variant %v is set", n.typ), Remedy: "set one"}
	}
	f := &n.fields[which]
	e.b = binary.LittleEndian.AppendUint32(e.b, uint32(which))
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	if err := e.append(f.node, v.Field(f.index).Elem()); err != nil {
		return codecplan.Under(err, f.name)
	}
	return nil
}

func (e *encoder) version(n *node, v reflect.Value) error {
	version := ClassVersion(v.Uint())
	switch sent, known := e.versions[n.typ]; {
	case known && sent != version:
		return &codec.Error{
			Problem: fmt.Sprintf("the version is %d, that of an earlier %v in the message %d", version, n.typ, sent),
			Remedy:  "give all values of a class one version",
		}
	case known:
		return nil
	}
	if e.versions == nil {
		e.versions = map[reflect.Type]ClassVersion{}
	}
	e.versions[n.typ] = version
	e.b = binary.LittleEndian.AppendUint32(e.b, uint32(version))
	return nil
}

func (e *encoder) custom(p any) error {
	b, err := codecplan.Append(e.codec, e.b, p)
	if err != nil {
		return err
	}
	e.b = b
	return nil
}
