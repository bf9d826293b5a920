// Package benchtest runs the servers of measuring programs for their tests.
package benchtest

import (
	"io"
	"strings"
	"testing"
)

// Serve runs the command serve of a program in this process and returns the address that it prints. The end of the test ends
// the server's standard input, and checks that the server then ends without an error.
func Serve(t *testing.T, run func(args []string, in io.Reader, out io.Writer) error) (address string) {
	t.Helper()
	in, end := io.Pipe()
	addr, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run([]string{"serve"}, in, out) }()
	t.Cleanup(func() {
		_ = end.Close() // of a pipe: it cannot fail
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	text := make([]byte, 64)
	n, err := addr.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text[:n]))
}
