package codec_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codec/hgproc"
)

var codecs = []codec.Codec{hgproc.Codec{}, cereal.Codec{}}

// encode appends v and reads it back into out.
func encode[T any](t *testing.T, c codec.Codec, v, out *T) string {
	t.Helper()
	plan, err := c.Plan(reflect.TypeFor[T]())
	if err != nil {
		t.Fatal(err)
	}
	b, err := plan.Append(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := plan.Decode(b, out); err != nil || n != len(b) {
		t.Fatalf("read %d of %d bytes: %v", n, len(b), err)
	}
	if !reflect.DeepEqual(v, out) {
		t.Errorf("%s: read %+v, want %+v", c.Name(), *out, *v)
	}
	for n := range b {
		if _, err := plan.Decode(b[:n], new(T)); !errors.Is(err, codec.ErrOverflow) {
			t.Errorf("%s: cut to %d of %d bytes: %v, want ErrOverflow", c.Name(), n, len(b), err)
		}
	}
	return hex.EncodeToString(b)
}

func TestResult(t *testing.T) {
	for _, c := range codecs {
		good := codec.ResultOf(int32(7), nil)
		if got := encode(t, c, &good, new(codec.Result[int32])); got != "0107000000" {
			t.Errorf("%s: a value has the bytes %s", c.Name(), got)
		}
		if v, err := good.Get(); v != 7 || err != nil {
			t.Errorf("a value is %v, %v", v, err)
		}
		bad := codec.ResultOf(int32(7), errors.New("no"))
		want := map[string]string{"hgproc": "000300000000000000" + "6e6f000000", "cereal": "000200000000000000" + "6e6f"}[c.Name()]
		if got := encode(t, c, &bad, new(codec.Result[int32])); got != want {
			t.Errorf("%s: an error has the bytes %s, want %s", c.Name(), got, want)
		}
		if v, err := bad.Get(); v != 0 || err == nil || err.Error() != "no" {
			t.Errorf("an error is %v, %v", v, err)
		}
		plan, err := c.Plan(reflect.TypeFor[codec.Result[int32]]())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plan.Append(nil, &codec.Result[int32]{OK: true, Err: "lost"}); err == nil || !strings.Contains(err.Error(), "does not travel") {
			t.Errorf("%s: a text beside a value: %v", c.Name(), err)
		}
	}
}

// pair has parts of a type that only the program knows.
type pair[T any] struct{ a, b T }

func (p *pair[T]) AppendProcWith(c codec.Codec, b []byte) ([]byte, error) {
	b, err := codec.Append(c, b, &p.a)
	if err != nil {
		return b, err
	}
	return codec.Append(c, b, &p.b)
}

func (p *pair[T]) DecodeProcWith(c codec.Codec, b []byte) (int, error) {
	n, err := codec.Decode(c, b, &p.a)
	if err != nil {
		return 0, err
	}
	m, err := codec.Decode(c, b[n:], &p.b)
	return n + m, err
}

func TestPartsUseTheCodecInUse(t *testing.T) {
	type value struct{ P pair[string] }
	in := value{pair[string]{"x", "yz"}}
	for _, c := range codecs {
		var whole []byte
		for _, s := range []string{"x", "yz"} {
			var err error
			if whole, err = codec.Append(c, whole, &s); err != nil {
				t.Fatal(err)
			}
		}
		plan, err := c.Plan(reflect.TypeFor[value]())
		if err != nil {
			t.Fatal(err)
		}
		b, err := plan.Append(nil, &in)
		if err != nil || !bytes.Equal(b, whole) {
			t.Errorf("%s: %x, %v, want %x", c.Name(), b, err, whole)
		}
		var out value
		if n, err := plan.Decode(b, &out); err != nil || n != len(b) || out != in {
			t.Errorf("%s: read %+v from %d bytes, %v", c.Name(), out, n, err)
		}
		if _, err := plan.Decode(b[:len(b)-1], &out); !errors.Is(err, codec.ErrOverflow) {
			t.Errorf("%s: cut short: %v, want ErrOverflow", c.Name(), err)
		}
	}
}

// bytePair lends its methods to the type that embeds it alone.
type bytePair struct{ a, b byte }

func (p bytePair) AppendProc(b []byte) ([]byte, error) { return append(b, p.a, p.b), nil }

func (p *bytePair) DecodeProc(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, codec.ErrOverflow
	}
	p.a, p.b = b[0], b[1]
	return 2, nil
}

// TestEmbeddedAlone sends a type whose only field has the methods.
func TestEmbeddedAlone(t *testing.T) {
	type outer struct{ bytePair }
	type value struct{ X outer }
	for _, c := range codecs {
		plan, err := c.Plan(reflect.TypeFor[value]())
		if err != nil {
			t.Fatalf("%s: %v", c.Name(), err)
		}
		in := value{outer{bytePair{1, 2}}}
		b, err := plan.Append(nil, &in)
		if err != nil || !bytes.HasSuffix(b, []byte{1, 2}) {
			t.Errorf("%s: %x, %v", c.Name(), b, err)
		}
		var out value
		if n, err := plan.Decode(b, &out); err != nil || n != len(b) || out != in {
			t.Errorf("%s: read %+v from %d bytes, %v", c.Name(), out, n, err)
		}
		type pointed struct{ *bytePair }
		if _, err := c.Plan(reflect.TypeFor[pointed]()); err == nil || !strings.Contains(err.Error(), "embedded field bytePair alone") {
			t.Errorf("%s: an embedded pointer, which may be nil: %v", c.Name(), err)
		}
	}
}

type half struct{}

func (*half) AppendProcWith(_ codec.Codec, b []byte) ([]byte, error) { return b, nil }

func TestPartsRefused(t *testing.T) {
	for _, c := range codecs {
		if _, err := c.Plan(reflect.TypeFor[half]()); err == nil || !strings.Contains(err.Error(), "DecodeProcWith") {
			t.Errorf("%s: a type that only appends: %v", c.Name(), err)
		}
		if _, err := codec.Append(c, nil, 7); err == nil {
			t.Errorf("%s: a part that is no pointer is taken", c.Name())
		}
		if _, err := codec.Decode(c, nil, nil); err == nil {
			t.Errorf("%s: no part is taken", c.Name())
		}
		if _, err := codec.Decode(c, nil, (*int32)(nil)); err == nil {
			t.Errorf("%s: a nil pointer is taken", c.Name())
		}
	}
}
