// Package fttest has the helpers that the tests of both programs share.
package fttest

import (
	"io"
	"testing"
	"time"
)

// Limit bounds a test, because a defect may block it.
const Limit = 30 * time.Second

// Must returns a function that returns v, or ends the test if err is not nil.
func Must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Shut closes c. An error fails the test.
func Shut(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
