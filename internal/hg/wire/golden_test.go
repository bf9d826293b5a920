package wire

import (
	"testing"

	"cinnabar/internal/recording"
)

// goldens returns the messages of C in testdata whose names begin with prefix.
func goldens(t testing.TB, prefix string) map[string][]byte {
	t.Helper()
	messages, err := recording.ReadHex("testdata", prefix)
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
