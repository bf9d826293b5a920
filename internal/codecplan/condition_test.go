package codecplan

import (
	"reflect"
	"strings"
	"testing"
)

type conditional struct {
	OK    bool
	Kind  uint8
	Level int32
	Name  string
	Value int64
}

func TestCondition(t *testing.T) {
	typ := reflect.TypeFor[conditional]()
	for _, test := range []struct {
		text string
		s    conditional
		want bool
	}{
		{"OK", conditional{OK: true}, true},
		{"OK", conditional{}, false},
		{"!OK", conditional{}, true},
		{"!OK", conditional{OK: true}, false},
		{"Kind:1|0xff", conditional{Kind: 255}, true},
		{"Kind:1|0xff", conditional{Kind: 2}, false},
		{"Level:-1", conditional{Level: -1}, true},
		{"Level:-1", conditional{Level: 1}, false},
	} {
		c, err := ParseCondition(test.text, typ, []int{0, 1, 2, 3})
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		if got := c.Holds(reflect.ValueOf(test.s)); got != test.want {
			t.Errorf("%s of %+v is %v, want %v", test.text, test.s, got, test.want)
		}
	}
}

func TestConditionRefused(t *testing.T) {
	typ := reflect.TypeFor[conditional]()
	for text, want := range map[string]string{
		"Missing":  "no field",
		"Value":    "no field", // it does not stand before
		"Name":     "does not fit",
		"Kind":     "does not fit",
		"OK:1":     "does not fit",
		"!Kind:1":  "no field",
		"Kind:256": "is no uint8",
		"Kind:":    "is no uint8",
		"Level:x":  "is no int32",
	} {
		if _, err := ParseCondition(text, typ, []int{0, 1, 2, 3}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestUnsentValueIsRefused(t *testing.T) {
	c, err := ParseCondition("OK", reflect.TypeFor[conditional](), []int{0})
	if err != nil {
		t.Fatal(err)
	}
	s := reflect.ValueOf(conditional{Value: 7})
	if err := c.CheckUnsent(s, s.Field(4)); err == nil {
		t.Error("a value that does not travel is not refused")
	}
	if err := c.CheckUnsent(s, s.Field(3)); err != nil {
		t.Errorf("an empty field: %v", err)
	}
}
