// Package logtest has a [Buffer] for tests that check the lines of a log.
package logtest

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

// Buffer keeps all bytes that are written to it. The zero Buffer is empty. All methods are safe for concurrent use, but
// Want is called on the goroutine of the test, because it calls Fatalf.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements [io.Writer].
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns everything that has been written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Lines returns the lines without their ends. An empty Buffer has one empty line.
func (b *Buffer) Lines() []string { return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") }

// Want checks that line i, counted from 0, has all these texts. It ends the test if there is no such line.
func (b *Buffer) Want(t testing.TB, i int, texts ...string) {
	t.Helper()
	ls := b.Lines()
	if i >= len(ls) {
		t.Fatalf("there is no line %d in %q", i, ls)
	}
	for _, text := range texts {
		if !strings.Contains(ls[i], text) {
			t.Errorf("line %d is %q, want %q in it", i, ls[i], text)
		}
	}
}

// End checks that there are n lines, one at least.
func (b *Buffer) End(t testing.TB, n int) {
	t.Helper()
	if ls := b.Lines(); len(ls) != n {
		t.Errorf("%d lines, want %d: %q", len(ls), n, ls)
	}
}
