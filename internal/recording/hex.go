package recording

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ReadHex returns the messages in the files PREFIX*.hex of a directory, by name without .hex. A file has one message in hexadecimal
// digits, with blanks and bars between them. Lines that start with # are comments, which name the source of the message. A directory
// without such a file is an error.
func ReadHex(dir, prefix string) (map[string][]byte, error) {
	files, err := filepath.Glob(filepath.Join(dir, prefix+"*.hex"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no file %s*.hex in %s: %w", prefix, dir, os.ErrNotExist)
	}
	messages := make(map[string][]byte)
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var digits strings.Builder
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") {
				digits.WriteString(strings.NewReplacer(" ", "", "|", "", "\n", "").Replace(line))
			}
		}
		b, err := hex.DecodeString(digits.String())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		messages[strings.TrimSuffix(filepath.Base(path), ".hex")] = b
	}
	return messages, nil
}

// MustReadHex is ReadHex for tests: an error ends the test.
func MustReadHex(t testing.TB, dir, prefix string) map[string][]byte {
	t.Helper()
	messages, err := ReadHex(dir, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}
