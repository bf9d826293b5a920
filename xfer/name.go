package xfer

import (
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName is the most bytes that a name may have: what file systems allow, and
// one less than the paper's program has room for.
const MaxName = 255

// CheckName refuses names that are no plain file names: empty, longer than
// [MaxName], ".", "..", with a slash or a backslash (a separator of some system),
// with NUL or another control character, with one that turns the direction of text
// and so shows a name as another, not UTF-8, of a device, or reserved for files that
// are not complete yet.
func CheckName(name string) error {
	if err := checkWireName(name); err != nil {
		return err
	}
	switch {
	case name == "." || name == "..":
		return failf(CodeName, "%q is a directory; send a file name", name)
	case strings.ContainsAny(name, `/\`):
		return failf(CodeName, "%q has a path separator; send the last element only", name)
	case !utf8.ValidString(name):
		return failf(CodeName, "%q is not UTF-8", name)
	case strings.ContainsFunc(name, isControl):
		return failf(CodeName, "%q has a control character", name)
	case !filepath.IsLocal(name):
		return failf(CodeName, "%q means something else to this system", name)
	case strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix):
		return failf(CodeName, "%q is reserved for files that are not complete", name)
	}
	return nil
}

// isControl reports whether r is no part of a text but tells how to show it.
func isControl(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// checkWireName refuses what the protocol itself cannot carry.
func checkWireName(name string) error {
	switch {
	case name == "":
		return failf(CodeName, "the name is empty")
	case len(name) > MaxName:
		return failf(CodeName, "the name has %d bytes, the most is %d", len(name), MaxName)
	case strings.IndexByte(name, 0) >= 0:
		return failf(CodeName, "the name %q has a NUL inside", name)
	}
	return nil
}
