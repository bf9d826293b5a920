package cereal

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strconv"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// decoder reads one message. It never leaves its goroutine's stack.
type decoder struct {
	codec codec.Codec // for custom types
	b     []byte      // the rest of the message
	depth int
	ahead int // bytes that may still be allocated for elements that containers have announced and that are not read yet

	objects  []reflect.Value               // pointers to the targets of shared pointers, by id-1
	versions map[reflect.Type]ClassVersion // of classes of which a value has been read
}

// DecodeValue reads v, which can be set, from the start of b and returns the rest of b.
func (n *node) DecodeValue(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	d := decoder{codec: c, b: b, ahead: len(b)}
	if err := d.decode(n, v); err != nil {
		return nil, err
	}
	return d.b, nil
}

// decode reads v, which can be set.
func (d *decoder) decode(n *node, v reflect.Value) error {
	if len(d.b) < n.min {
		return d.short(n, v)
	}
	switch n.op {
	case opString:
		return d.text(v)
	case opByteArray:
		copy(v.Bytes(), d.take(n.min))
	case opArray:
		return d.array(n, v)
	case opByteSlice:
		return d.bytes(v)
	case opSlice:
		return d.slice(n, v)
	case opMap:
		return d.mapping(n, v)
	case opOptional:
		return d.pointer(n, v, d.take(presence)[0] == 0)
	case opUnique:
		return d.pointer(n, v, d.take(presence)[0] != 0)
	case opShared:
		return d.shared(n, v)
	case opStruct:
		return d.fields(n, v)
	case opVariant:
		return d.variant(n, v)
	case opVersion:
		return d.version(n, v)
	case opCustom:
		rest, err := codecplan.Decode(d.codec, d.b, v.Addr().Interface())
		d.b = rest
		return err
	default:
		n.op.SetScalar(v, d.take(n.min))
	}
	return nil
}

// take returns the next n bytes, which the caller knows to be there.
func (d *decoder) take(n int) []byte {
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

// short says where the message, which has fewer bytes than n needs, ends. It descends to the field that cannot be read.
func (d *decoder) short(n *node, v reflect.Value) error {
	switch n.op {
	case opArray:
		return d.array(n, v)
	case opStruct:
		return d.fields(n, v)
	default: // nothing below
		return codecplan.Overflow("%v takes at least %d bytes, %d remain", n.typ, n.min, len(d.b))
	}
}

// enter goes one level deeper; leave goes back.
func (d *decoder) enter() error {
	if d.depth++; d.depth > maxDepth {
		return tooDeep()
	}
	return nil
}

func (d *decoder) leave() { d.depth-- }

// size reads a count of elements that take at least that many bytes each, and refuses one that the rest of the message
// cannot hold. Nothing is allocated for a count before this.
func (d *decoder) size(least int) (int, error) {
	count := binary.LittleEndian.Uint64(d.take(sizeTag))
	if count > uint64(len(d.b)/least) {
		return 0, codecplan.Overflow("%d elements of at least %d bytes exceed the %d bytes that remain", count, least, len(d.b))
	}
	return int(count), nil
}

func (d *decoder) text(v reflect.Value) error {
	n, err := d.size(1)
	if err != nil {
		return err
	}
	v.SetString(string(d.take(n)))
	return nil
}

func (d *decoder) bytes(v reflect.Value) error {
	n, err := d.size(1)
	if err != nil {
		return err
	}
	v.SetZero() // never into memory that the program may still hold
	if n > 0 {
		v.SetBytes(append([]byte(nil), d.take(n)...)) // unlike Grow, append clears no memory
	}
	return nil
}

func (d *decoder) fields(n *node, v reflect.Value) error {
	for i := range n.fields {
		f := &n.fields[i]
		if f.when != nil && !f.when.Holds(v) {
			v.Field(f.index).SetZero()
			continue
		}
		if err := d.decode(f.node, v.Field(f.index)); err != nil {
			return codecplan.Under(err, f.name)
		}
	}
	return nil
}

func (d *decoder) array(n *node, v reflect.Value) error {
	if n.isEmpty() {
		return nil
	}
	for i := range n.count {
		if err := d.decode(n.elem, v.Index(i)); err != nil {
			return codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return nil
}

func (d *decoder) slice(n *node, v reflect.Value) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	count, err := d.size(max(1, n.elem.min)) // a custom type may say nothing; then each is taken to need a byte
	if err != nil {
		return err
	}
	v.SetZero()
	if n.elem.isScalar() {
		d.scalars(n.elem, v, count)
		return nil
	}
	before := len(d.b)
	if err := d.elems(n.elem, v, count); err != nil {
		return err
	}
	if took := before - len(d.b); took < count { // or each container could announce all that remains, and leave it to the next
		return tooSmall(count, took)
	}
	return nil
}

// scalars reads count scalars, which b is known to hold, into v, an empty slice.
func (d *decoder) scalars(elem *node, v reflect.Value, count int) {
	b := d.take(count * elem.min)
	v.Grow(count)
	v.SetLen(count)
	if setNumbers(v.Addr().Interface(), b) {
		return
	}
	for i := range count {
		elem.op.SetScalar(v.Index(i), b[i*elem.min:])
	}
}

// elems reads count elements into v, an empty slice. Elements can be larger in memory than in the message, and
// containers in containers can each announce all that remains. So the first allocations, of all containers that are
// still being read, are together no larger than the message, and later ones follow the elements that were really read.
func (d *decoder) elems(elem *node, v reflect.Value, count int) error {
	first, taken := d.announced(count, elem.typ.Size())
	defer func() { d.ahead += taken }()
	v.Grow(first)
	for i := range count {
		if i == v.Cap() {
			v.Grow(1)
		}
		v.SetLen(i + 1)
		if err := d.decode(elem, v.Index(i)); err != nil {
			return codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return nil
}

// announced returns for how many of count elements of that size, but at least one, memory is taken before they are
// read, and the number of bytes to return to d.ahead after that.
func (d *decoder) announced(count int, size uintptr) (first, taken int) {
	each := max(1, int(size))
	first = min(count, 1+d.ahead/each)
	taken = min(d.ahead, first*each)
	d.ahead -= taken
	return first, taken
}

// mapping reads a map. Its entries may come in any order, because an unordered map in C++ has none of its own.
func (d *decoder) mapping(n *node, v reflect.Value) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	count, err := d.size(n.key.min + n.elem.min) // no key takes less than a byte
	if err != nil {
		return err
	}
	first, taken := d.announced(count, n.key.typ.Size()+n.elem.typ.Size())
	defer func() { d.ahead += taken }()
	v.Set(reflect.MakeMapWithSize(n.typ, first))
	key, elem := reflect.New(n.key.typ).Elem(), reflect.New(n.elem.typ).Elem()
	for i := range count {
		key.SetZero() // or it would share memory with an earlier entry
		elem.SetZero()
		if err := d.decode(n.key, key); err != nil {
			return codecplan.Under(err, "[key "+strconv.Itoa(i)+"]")
		}
		if v.MapIndex(key).IsValid() {
			return &codec.Error{
				Problem: fmt.Sprintf("key %s comes twice", keyStep(key)),
				Remedy:  "a multimap is a slice of structs with key and element",
			}
		}
		if err := d.decode(n.elem, elem); err != nil {
			return codecplan.Under(err, keyStep(key))
		}
		v.SetMapIndex(key, elem)
	}
	return nil
}

// pointer reads an optional or a unique pointer, and its target if there is one.
func (d *decoder) pointer(n *node, v reflect.Value, there bool) error {
	if !there {
		v.SetZero()
		return nil
	}
	v.Set(reflect.New(n.elem.typ))
	return d.pointee(n, v)
}

func (d *decoder) pointee(n *node, v reflect.Value) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.decode(n.elem, v.Elem())
}

// shared reads a shared pointer. Ids are counted as cereal counts them, so that a message that was not made by it is
// found out.
func (d *decoder) shared(n *node, v reflect.Value) error {
	id := binary.LittleEndian.Uint32(d.take(sharedID))
	known := uint32(len(d.objects))
	switch {
	case id == 0:
		v.SetZero()
		return nil
	case id == (known+1)|isNew:
		p := reflect.New(n.elem.typ)
		d.objects = append(d.objects, p) // before the object, which may lead back to itself
		v.Set(p)
		return d.pointee(n, v)
	case id > known:
		return &codec.Error{Problem: fmt.Sprintf("shared pointer %#x follows %d objects", id, known)}
	}
	p := d.objects[id-1]
	if p.Type().Elem() != n.elem.typ {
		return &codec.Error{Problem: fmt.Sprintf("shared pointer %d leads to a %v, not a %v", id, p.Type().Elem(), n.elem.typ)}
	}
	v.Set(p)
	return nil
}

func (d *decoder) variant(n *node, v reflect.Value) error {
	which := binary.LittleEndian.Uint32(d.take(altIndex))
	if which >= uint32(len(n.fields)) {
		return &codec.Error{Problem: fmt.Sprintf("alternative %d of the variant %v, which has %d", int32(which), n.typ, len(n.fields))}
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	for i := range n.fields {
		v.Field(n.fields[i].index).SetZero()
	}
	f := &n.fields[which]
	alt := v.Field(f.index)
	alt.Set(reflect.New(f.typ))
	if err := d.decode(f.node, alt.Elem()); err != nil {
		return codecplan.Under(err, f.name)
	}
	return nil
}

func (d *decoder) version(n *node, v reflect.Value) error {
	version, known := d.versions[n.typ]
	if !known {
		const size = 4
		if len(d.b) < size {
			return codecplan.Overflow("the class version takes %d bytes, %d remain", size, len(d.b))
		}
		version = ClassVersion(binary.LittleEndian.Uint32(d.take(size)))
		if d.versions == nil {
			d.versions = map[reflect.Type]ClassVersion{}
		}
		d.versions[n.typ] = version
	}
	v.SetUint(uint64(version))
	return nil
}
