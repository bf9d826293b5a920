// Package codectest has the checks that the tests of all codecs share: a value is written and read again, hostile lengths
// allocate little, and a message that was cut short is refused.
package codectest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
)

// TypeOf returns the type of the variable that v points to.
func TypeOf(v any) reflect.Type { return reflect.TypeOf(v).Elem() }

// PlanOf returns the plan of c for typ. It ends the test if there is none.
func PlanOf(t testing.TB, c codec.Codec, typ reflect.Type) codec.Plan {
	t.Helper()
	p, err := c.Plan(typ)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	return p
}

// MustAppend returns the bytes of the value that v points to. It ends the test if the value has none.
func MustAppend(t testing.TB, p codec.Plan, v any) []byte {
	t.Helper()
	b, err := p.Append(nil, v)
	if err != nil {
		t.Fatalf("Append(%+v): %v", v, err)
	}
	return b
}

// MustDecode reads *v from b. It ends the test if that fails or leaves bytes of b unread.
func MustDecode(t testing.TB, p codec.Plan, b []byte, v any) {
	t.Helper()
	n, err := p.Decode(b, v)
	if err != nil {
		t.Fatalf("Decode(%x): %v", b, err)
	}
	if n != len(b) {
		t.Fatalf("Decode(%x) took %d bytes, want %d", b, n, len(b))
	}
}

// Hex returns the bytes that the digits stand for.
func Hex(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// CheckRecode checks that a value which a plan reads from b is written with the same bytes: at once for type Exact, because
// its bytes have one form, and from the second writing on for type Every, because C and C++ read several forms of its bytes
// and write one.
func CheckRecode[Exact, Every any](t *testing.T, exact, every codec.Plan, b []byte) {
	t.Helper()
	if again, n, ok := recode[Exact](t, exact, b); ok && !bytes.Equal(again, b[:n]) {
		t.Errorf("read     %x\nwritten %x", b[:n], again)
	}
	if once, _, ok := recode[Every](t, every, b); ok {
		if twice, n, ok := recode[Every](t, every, once); !ok || n != len(once) || !bytes.Equal(once, twice) {
			t.Errorf("once  %x\ntwice %x", once, twice)
		}
	}
}

// recode reads a T from b and returns the bytes of that value and the number of bytes of b that it took.
func recode[T any](t *testing.T, p codec.Plan, b []byte) (again []byte, n int, ok bool) {
	t.Helper()
	v := new(T)
	n, err := p.Decode(b, v)
	if err != nil {
		return nil, 0, false
	}
	return MustAppend(t, p, v), n, true
}

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// Back writes in, reads it again from a message that continues after it, and returns the result.
func Back[T any](t fataler, p codec.Plan, in T) (out T) {
	t.Helper()
	b, err := p.Append(nil, &in)
	if err != nil {
		t.Fatal(err)
	}
	n, err := p.Decode(append(b, 0xff), &out)
	if err != nil || n != len(b) {
		t.Fatalf("Decode = %d, %v, want %d", n, err, len(b))
	}
	return out
}

// CheckTruncations checks that every shorter part of b, the bytes of a value of like's type, is refused with
// codec.ErrOverflow.
func CheckTruncations(t *testing.T, p codec.Plan, b []byte, like any) {
	t.Helper()
	for n := range b {
		v := reflect.New(TypeOf(like)).Interface()
		if _, err := p.Decode(b[:n:n], v); !errors.Is(err, codec.ErrOverflow) {
			t.Errorf("%d of %d bytes: %v, want codec.ErrOverflow", n, len(b), err)
		}
	}
}

// ErrOwn is the error of a custom type in tests.
var ErrOwn = errors.New("no bytes today")

// Misbehaved is a custom type that calls OnAppend and OnDecode for its bytes.
type Misbehaved struct {
	OnAppend func(b []byte) ([]byte, error)
	OnDecode func(b []byte) (int, error)
}

// AppendProc calls OnAppend.
func (m *Misbehaved) AppendProc(b []byte) ([]byte, error) { return m.OnAppend(b) }

// DecodeProc calls OnDecode.
func (m *Misbehaved) DecodeProc(b []byte) (int, error) { return m.OnDecode(b) }

// CheckError checks that the text of err ends with want, because the names of unnamed types before it are long, and that
// err is the error is, or no codec.ErrOverflow if is is nil.
func CheckError(t *testing.T, err error, want string, is error) {
	t.Helper()
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("\ngot  %v\nwant %s", err, want)
	}
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%v is not %v", err, is)
	}
	if is == nil && errors.Is(err, codec.ErrOverflow) {
		t.Errorf("%v is codec.ErrOverflow", err)
	}
}

// Hostile is a message that announces more than it holds.
type Hostile struct {
	Name  string
	Value any // a pointer to the variable that is read
	Bytes []byte
}

// CheckHostile checks that c refuses each message with codec.ErrOverflow and allocates at most factor times its size and
// 32 KiB for it.
func CheckHostile(t *testing.T, c codec.Codec, factor int, messages []Hostile) {
	for _, m := range messages {
		t.Run(m.Name, func(t *testing.T) {
			p := PlanOf(t, c, TypeOf(m.Value))
			var err error
			got := Allocated(func() { _, err = p.Decode(m.Bytes, m.Value) })
			if !errors.Is(err, codec.ErrOverflow) {
				t.Errorf("got %v", err)
			}
			if limit := uint64(len(m.Bytes)*factor + 1<<15); got > limit {
				t.Errorf("allocated %d bytes for %d, want at most %d", got, len(m.Bytes), limit)
			}
		})
	}
}

// Allocated returns the number of bytes that f allocates.
func Allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// All is all_t of test/interop/c/types.h, which has a field of every type that hg_proc has a routine for. B is the type
// of a bulk handle.
type All[B any] struct {
	I8      int8
	U8      uint8
	I16     int16
	U16     uint16
	I32     int32
	U32     uint32
	I64     int64
	U64     uint64
	Flag    bool
	Size    uint64
	Ptr     uint64
	ID      hgproc.ID
	F32     float32
	F64     float64
	Raw     [5]byte
	Text    string
	Fixed   hgproc.ConstString
	Nothing *string
	Empty   string
	Bulk    B
}
