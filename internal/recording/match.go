package recording

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// values holds the values of the fields of a conversation, by name.
type values map[string][]byte

// expand returns the bytes that m stands for. actual, if it is not nil, is the message that has arrived: a field without a value takes
// it from there. Without actual such a field is an error.
func (v values) expand(m *Message, actual []byte) ([]byte, error) {
	b := make([]byte, 0, m.Size())
	for i := range m.Items {
		it := &m.Items[i]
		at := len(b)
		b = b[:at+it.Size]
		switch it.Kind {
		case Literal:
			copy(b[at:], it.Bytes)
		case Formula:
			fillPattern(b[at:], it.Seed, it.Offset)
		case Repeat:
			for n := at; n < len(b); {
				n += copy(b[n:], it.Bytes)
			}
		case Field:
			value, err := v.field(it, actual, at)
			if err != nil {
				return nil, err
			}
			copy(b[at:], value)
		case Sum, Verify:
		}
	}
	end := len(b)
	for i := len(m.Items) - 1; i >= 0; i-- {
		at := end - m.Items[i].Size
		if m.Items[i].Kind == Sum {
			binary.BigEndian.PutUint32(b[at:], crc32.Checksum(b[end:], castagnoli))
		}
		end = at
	}
	return b, nil
}

// field returns the value of a field, and sets it from actual if there is none.
func (v values) field(it *Item, actual []byte, at int) ([]byte, error) {
	if value, ok := v[it.Name]; ok {
		return value, nil
	}
	if actual == nil {
		return nil, fmt.Errorf("field %s has no value yet, because the other side has not sent it", it.Name)
	}
	value := bytes.Clone(actual[at : at+it.Size])
	for name, other := range v {
		if fieldKind(name) == fieldKind(it.Name) && bytes.Equal(other, value) {
			return nil, fmt.Errorf("fields %s and %s are both %x", name, it.Name, value)
		}
	}
	v[it.Name] = value
	return value, nil
}

// check reports how actual, which is as long as m, differs from m.
func (v values) check(m *Message, actual []byte) error {
	want, err := v.expand(m, actual)
	if err != nil {
		return err
	}
	if bytes.Equal(want, actual) {
		return v.verify(m, actual)
	}
	at := 0
	for want[at] == actual[at] {
		at++
	}
	from, to := max(0, at-16), min(len(want), at+48)
	return fmt.Errorf("byte %d of %d is %02x, want %02x; bytes %d to %d are\n%x, want\n%x", at, len(want), actual[at], want[at], from, to, actual[from:to], want[from:to])
}

// verify compares m with the checksums in earlier messages.
func (v values) verify(m *Message, actual []byte) error {
	at := 0
	for i := range m.Items {
		it := &m.Items[i]
		if it.Kind == Verify {
			got := binary.BigEndian.AppendUint32(nil, crc32.Checksum(actual[at:], castagnoli))
			if !bytes.Equal(v[it.Name], got) {
				return fmt.Errorf("the CRC-32C of %d bytes is %x, field %s says %x", len(actual)-at, got, it.Name, v[it.Name])
			}
		}
		at += it.Size
	}
	return nil
}
