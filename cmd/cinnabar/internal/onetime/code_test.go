package onetime

import (
	"strings"
	"testing"
)

func TestCode(t *testing.T) {
	seen := map[Code]bool{}
	for range 1000 {
		c := New()
		if seen[c] {
			t.Errorf("%v comes twice", c)
		}
		seen[c] = true
		for _, text := range []string{c.String(), c.text, " " + strings.ReplaceAll(c.String(), "-", " ") + "\n"} {
			if got, err := Parse(text); err != nil || got != c {
				t.Errorf("%q: %v, %v", text, got, err)
			}
		}
	}
	for _, text := range []string{"", "123", "123456789a", "12345678901", "4821-730-95６", "-1234567890-1"} {
		if c, err := Parse(text); err == nil {
			t.Errorf("%q was taken for %v", text, c)
		}
	}
}

// One wrong digit is found before a guess is spent, and the error does not have the code.
func TestCodeCheckDigit(t *testing.T) {
	c := New()
	for i := range c.text {
		for d := byte('0'); d <= '9'; d++ {
			if c.text[i] == d {
				continue
			}
			wrong := c.text[:i] + string(d) + c.text[i+1:]
			if _, err := Parse(wrong); err == nil {
				t.Errorf("%s was taken, the code is %s", wrong, c.text)
			} else if strings.Contains(err.Error(), wrong) {
				t.Errorf("the error %q has the code", err)
			}
		}
	}
}
