//go:build linux || darwin

package xfer

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestStalePartsAreRemoved opens a directory in which a killed receiver has left a part. The part is removed when it is a day
// old. Parts that are younger or that a process holds stay, and so do files of other names and kinds.
func TestStalePartsAreRemoved(t *testing.T) {
	path := t.TempDir()
	long := time.Now().Add(-2 * staleAfter)
	part := func(i string) string { return tempPrefix + "000000000000000" + i + tempSuffix }
	make := func(name string, at time.Time) {
		t.Helper()
		file := filepath.Join(path, name)
		if err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	other := []string{tempPrefix + "short" + tempSuffix, tempPrefix + "000000000000000g" + tempSuffix, tempPrefix + "0000000000000000", "0000000000000000" + tempSuffix, "file"}
	for _, name := range append(other, part("1"), part("2")) {
		make(name, long)
	}
	make(part("3"), time.Now())
	if err := errors.Join(os.Mkdir(filepath.Join(path, part("4")), 0o700), os.Symlink(part("3"), filepath.Join(path, part("5")))); err != nil {
		t.Fatal(err)
	}
	want := append(slices.Clone(other), part("3"), part("4"), part("5"))

	keeps := must(OpenDir(t.Context(), path, DirOptions{KeepPartial: true}))(t)
	if got := entries(t, path); !slices.Contains(got, part("1")) {
		t.Errorf("a directory that keeps parts has removed one: %q", got)
	}
	f := must(keeps.Open(t.Context(), netip.AddrPort{}, "held", Meta{}, 1))(t)
	held := f.(*dirFile).temp
	if err := os.Chtimes(filepath.Join(path, held), long, long); err != nil {
		t.Fatal(err)
	}
	d := must(OpenDir(t.Context(), path, DirOptions{}))(t)
	want = append(want, held)
	slices.Sort(want)
	if got := entries(t, path); !slices.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
	if err := f.Commit(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(path, held)); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a part has its temporary name after Commit:", err)
	}
	if err := errors.Join(keeps.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}

// TestPartOfOldFileIsKept receives a file that the sender has last changed long ago. The part is closed and has that time before it
// gets its name. A receiver that opens the directory just then does not remove it.
func TestPartOfOldFileIsKept(t *testing.T) {
	path := t.TempDir()
	d := must(OpenDir(t.Context(), path, DirOptions{}))(t)
	file := must(d.Open(t.Context(), netip.AddrPort{}, "old", Meta{ModTime: time.Now().Add(-2 * staleAfter)}, 1))(t).(*dirFile)
	if _, err := file.WriteAt([]byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := file.finish(); err != nil { // the first half of Commit
		t.Fatal(err)
	}
	other := must(OpenDir(t.Context(), path, DirOptions{}))(t)
	if got := entries(t, path); !slices.Equal(got, []string{file.temp}) {
		t.Errorf("the directory has %q, want %q", got, file.temp)
	}
	if err := file.rename(); err != nil {
		t.Error(err)
	}
	file.unlock()
	d.release(file.name)
	if err := errors.Join(other.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}
