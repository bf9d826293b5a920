//go:build unix

package xfer

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A FIFO is refused at once, whether or not somebody writes to it, and its writer
// does not notice.
// parity: B45
func TestOpenFileDoesNotWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, _, err := OpenFile(path, false)
		refused <- err
	}()
	select {
	case err := <-refused:
		if err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("got %v", err)
		}
	case <-testContext(t).Done():
		f := must(os.OpenFile(path, os.O_RDWR, 0))(t) // lets it go
		t.Errorf("OpenFile waits for a writer; then %v, %v", <-refused, f.Close())
	}
}

// The flag is one that open(2) heeds: what the look beforehand has missed is not
// waited for either.
func TestOpenAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openAtOnce, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
