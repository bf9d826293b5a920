package cerealtest

import (
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
)

// Recorded is the output of test/interop/cpp/values.cpp, line by line: the bytes in hexadecimal digits, "-" for none, and
// the name of the value. Lines that begin with # say how it came about.
//
//go:embed thallium.hex
var Recorded string

// Bytes returns the recorded bytes by name.
func Bytes() (map[string][]byte, error) {
	found := map[string][]byte{}
	for line := range strings.Lines(Recorded) {
		digits, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if digits == "#" || !ok {
			continue
		}
		b, err := hex.DecodeString(strings.Trim(digits, "-"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found[name] = b
	}
	return found, nil
}
