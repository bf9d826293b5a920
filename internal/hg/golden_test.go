package hg

import (
	"bytes"
	"testing"

	"cinnabar/internal/recording"
)

// goldens returns the messages of C in testdata whose names begin with prefix.
func goldens(t testing.TB, prefix string) map[string][]byte {
	t.Helper()
	messages, err := recording.ReadHex("wire/testdata", prefix)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// golden returns one of them.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	return goldens(t, name)[name]
}

// changed returns b with one byte replaced.
func changed(b []byte, at int, to byte) []byte {
	b = bytes.Clone(b)
	b[at] = to
	return b
}
