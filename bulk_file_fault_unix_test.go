//go:build unix

package cinnabar

import (
	"errors"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hostmem"
)

// TestExposedFileBecomesShorter truncates a file while it is exposed. Accesses of this process to the part that is gone once ended
// it by a signal, also the one that embeds small memory in its handle.
func TestExposedFileBecomesShorter(t *testing.T) {
	p := newBulkPair(t)
	f := tempFile(t, noise(500))
	b := exposeFile(t, p.there, ReadWrite, f)
	must(t, f.Truncate(0))
	_, err := b.ReadAt(make([]byte, 100), 0)
	wantCode(t, err, codes.Fault, "became shorter")
	if !errors.Is(err, hostmem.ErrFault) {
		t.Errorf("%v is not hostmem.ErrFault", err)
	}
	_, err = b.WriteAt([]byte("x"), 0)
	wantCode(t, err, codes.Fault)
	if raw := b.Handle().d.AppendProc(nil, 4096, hg.OverNetwork); len(raw) >= 500 {
		t.Errorf("a handle of %d bytes", len(raw))
	}
	own := RemoteBulk{ep: p.there.Self(), h: b.Handle(), n: 500}
	_, err = own.ReadAt(t.Context(), make([]byte, 100), 0)
	wantCode(t, err, codes.Fault)
	must(t, f.Truncate(500))
	if _, err := b.ReadAt(make([]byte, 100), 0); err != nil {
		t.Errorf("after the file is as long as before: %v", err)
	}
}
