package cli

import "testing"

// Text is folded at spaces; paragraphs and indented lines stay.
func TestFold(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"one two three":               "one two\nthree",
		"one\ntwo\nthree":             "one two\nthree",
		"one\n\ntwo":                  "one\n\ntwo",
		"unbreakable-word and":        "unbreakable-word\nand",
		"one\n    indented more here": "one\n    indented more here",
		"äöüß äöüß":                   "äöüß äöüß", // nine characters
	} {
		if got := Fold(text, 9); got != want {
			t.Errorf("fold(%q) = %q, want %q", text, got, want)
		}
	}
}
