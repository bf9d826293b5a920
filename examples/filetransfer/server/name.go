package main

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	ft "cinnabar/examples/filetransfer"
)

// parseName reads the name that a client wrote, with its NUL. A name is that of
// a file in the server's directory and can be printed: the paper's listing checks
// neither, and writes behind its own buffer if the name is long.
func parseName(b []byte) (string, error) {
	if len(b) == 0 || b[len(b)-1] != 0 {
		return "", fmt.Errorf("the file name of %d bytes has no NUL at its end", len(b))
	}
	name := string(bytes.TrimSuffix(b, []byte{0}))
	switch {
	case name == "", name == ".", name == "..":
		return "", fmt.Errorf("%q is no name for a file", name)
	case len(name) > ft.MaxNameLen:
		return "", fmt.Errorf("the file name has %d bytes, the most is %d", len(name), ft.MaxNameLen)
	case !utf8.ValidString(name), strings.ContainsFunc(name, forbidden):
		return "", fmt.Errorf("the file name %q has separators or bytes that cannot be printed", name)
	}
	return name, nil
}

// forbidden reports whether no file name may have r: a separator of any system, or a character that a terminal would act upon.
func forbidden(r rune) bool {
	return r == '/' || r == '\\' || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}
