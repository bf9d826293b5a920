package cerealtest

import (
	"math"
	"time"
)

// Values returns a pointer to the value of each name in [Bytes]. They are the caller's.
func Values() map[string]any {
	return map[string]any{
		"bool/true":            new(true),
		"bool/false":           new(false),
		"char":                 new(byte('Z')),
		"int8":                 new(int8(-1)),
		"uint8":                new(uint8(0xa5)),
		"int16":                new(int16(-300)),
		"uint16":               new(uint16(0x1234)),
		"int32":                new(int32(-70000)),
		"uint32":               new(uint32(0x33445566)),
		"int64":                new(int64(-5000000000)),
		"uint64":               new(uint64(0x1122334455667788)),
		"long":                 new(int64(-2)),
		"size_t":               new(uint64(1 << 40)),
		"float":                new(float32(2.5)),
		"float/nan":            new(math.Float32frombits(0x7fc00000)),
		"double":               new(1.5),
		"double/negative zero": new(math.Copysign(0, -1)),
		"enum":                 new(PlainEnum(-7)),
		"enum class":           new(SmallEnum(200)),
		"complex<float>":       new(complex64(1.5 - 2i)),
		"complex<double>":      new(0.25 + 3i),

		"string":       new("str"),
		"string/empty": new(""),
		"string/utf8":  new("grüß 日本"),
		"string/nul":   new("a\x00b"),
		"u16string":    &[]uint16{'ü', 'x'},
		"wstring":      &[]int32{'w', 'x'},

		"vector<int32>":         &[]int32{1, 2, 3},
		"vector<int32>/empty":   new([]int32),
		"vector<char>":          &[]byte{'a', 'b'},
		"vector<double>":        &[]float64{1.5, -2},
		"vector<bool>":          &[]bool{true, false, true},
		"vector<string>":        &[]string{"a", "bc", ""},
		"vector<vector<int16>>": &[][]int16{{1}, nil, {2, 3}},
		"vector<complex>":       &[]complex64{1 + 2i, 3 + 4i},
		"vector<point>":         &[]Point{{1, 2, 3}, {4, 5, 6}},
		"array<int32>":          &[3]int32{4, 5, 6},
		"array<string>":         &[2]string{"x", "yz"},
		"list":                  &[]int32{9, 8},
		"deque":                 &[]string{"front", "back"},
		"forward_list":          &[]byte{3, 2, 1},
		"queue":                 &[]int16{1, 2},

		"set<int32>":         &map[int32]struct{}{3: {}, -1: {}, 2: {}},
		"set<string>":        &map[string]struct{}{"b": {}, "a": {}, "ü": {}},
		"multiset":           &[]int32{1, 2, 2},
		"unordered_set":      &map[int32]struct{}{7: {}},
		"unordered_multiset": &[]int32{7, 7},

		"map<string,int32>":         &map[string]int32{"two": 2, "one": 1},
		"map<int32,vector<string>>": &map[int32][]string{5: {"five"}, -5: nil},
		"map<pair,bool>":            &map[Keyed]bool{{1, "b"}: true, {1, "a"}: false, {0, "z"}: true},
		"map<double,uint8>":         &map[float64]uint8{1.5: 1, -2: 2, 0: 3},
		"map/empty":                 &map[string]string{},
		"multimap":                  &[]Keyed{{1, "a"}, {2, "b"}},
		"unordered_map":             &map[string]float64{"pi": 3.25},
		"unordered_multimap":        &[]Pair[uint8, uint8]{{1, 2}, {1, 2}},

		"pair": &Keyed{1, "one"},
		"tuple": &struct {
			A int8
			B string
			C float64
		}{-1, "t", 0.5},
		"tuple/empty":              &struct{}{},
		"optional/none":            new(Maybe[int32]),
		"optional/some":            &Maybe[int32]{new(int32(42))},
		"vector<optional<string>>": &[]Maybe[string]{{new("s")}, {}},
		"variant/0":                &NumberOrText{Number: new(int32(7))},
		"variant/1":                &NumberOrText{Text: new("seven")},
		"variant/monostate":        &MaybeByte{None: new(struct{})},
		"nanoseconds":              new(1500 * time.Nanosecond),
		"bitset":                   &Bitset10{3, [2]uint8{0xa0, 0x40}},

		"unique_ptr/null": new(Sole[int32]),
		"unique_ptr/some": &Sole[int32]{new(int32(5))},
		"tree":            &Sole[Tree]{&Tree{Value: 1, Left: &Tree{Value: 2, Right: &Tree{Value: 3}}}},

		"shared_ptr/null":    new(Common[int32]),
		"shared_ptr/some":    &Common[int32]{new(int32(5))},
		"vector<shared_ptr>": sharedStrings(),
		"pair<shared_ptr>":   sharedPair(),
		"ring":               &Common[Ring]{newRing()},
		"weak_ptr":           &Common[Parent]{newFamily()},

		"class":          &Point{1, -2, 0.5},
		"class/save":     &Saved{4, "n"},
		"class/empty":    &Around{Before: 1, After: 2},
		"class/base":     &Derived{Point{X: 1}, "d"},
		"class/version":  &[]Versioned{{3, 1}, {3, 2}},
		"class/versions": &Pair[Versioned, Versioned]{Versioned{3, 1}, Versioned{3, 2}},
		"class/raw":      &Raw{[3]uint16{1, 2, 3}, struct{ A, B uint8 }{4, 5}},
		"nested": &[]map[string][]Pair[int8, Maybe[string]]{
			{"k": {{1, Maybe[string]{new("v")}}, {2, Maybe[string]{}}}, "": nil}, {},
		},
		"bulk/null": new(Blob),
	}
}

func sharedStrings() *Strings {
	a, b := new("a"), new("b")
	return &Strings{[]*string{a, b, a, nil, b}}
}

func sharedPair() *StringAndMap {
	a, b := new("a"), new("b")
	return &StringAndMap{a, map[int8]*string{1: b, 2: a}}
}

func newRing() *Ring {
	a := &Ring{Name: "a"}
	a.Next = &Ring{"b", a}
	return a
}

func newFamily() *Parent {
	p := &Parent{}
	for _, age := range []int8{7, 3} {
		p.Children = append(p.Children, &Child{age, p})
	}
	return p
}
