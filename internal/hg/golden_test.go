package hg

import (
	"bytes"
	"testing"

	"cinnabar/internal/recording"
)

// goldens returns the messages of C in testdata whose names begin with prefix.
func goldens(t testing.TB, prefix string) map[string][]byte {
	t.Helper()
	return recording.MustReadHex(t, "wire/testdata", prefix)
}

// golden returns the message of C with that name.
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
