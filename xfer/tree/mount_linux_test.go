package tree

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/xfer"
)

// What is mounted in a tree of the receiver is no part of it, and stays.
func TestDeleteLeavesMounts(t *testing.T) {
	for _, c := range []struct {
		name, at, kind string
		failed         string
	}{
		{"in the tree", "mnt", "tmpfs", ""},
		{"deep", "dir/mnt", "tmpfs", ""},
		{"a file", "dir/file", "bind", ""},
		{"where the sender has a file", "a", "tmpfs", "which this receiver does not remove"},
		{"below that", "a/b", "tmpfs", "which this receiver does not remove"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, to := openDir(t, keeping())
			from, at := filepath.Join(t.TempDir(), "photos"), filepath.Join(to, "photos", c.at)
			plant(t, from, "a")
			plant(t, filepath.Join(to, "photos"), "old")
			inside := filepath.Join(at, "other")
			var err error
			if c.kind == "bind" {
				source := filepath.Join(t.TempDir(), "source")
				check(t, os.WriteFile(source, nil, 0o644))
				plant(t, filepath.Join(to, "photos"), c.at)
				inside = at
				err = unix.Mount(source, at, "", unix.MS_BIND, "")
			} else {
				check(t, os.MkdirAll(at, 0o755))
				err = unix.Mount("none", at, c.kind, 0, "")
			}
			if err != nil {
				t.Skipf("this user cannot mount: %v", err)
			}
			t.Cleanup(func() { check(t, unix.Unmount(at, 0)) })
			check(t, os.WriteFile(inside, []byte("x"), 0o644))
			_, err = storeChosen(d.Open, wished(t, from, xfer.WishDelete), 100, -1)
			left := []string{inside}
			if c.failed != "" {
				wantError(t, err, xfer.CodeExists, c.failed)
				left = append(left, filepath.Join(to, "photos/old"))
			} else {
				check(t, err)
				left = append(left, filepath.Join(to, "photos/a"))
				if _, err := os.Lstat(filepath.Join(to, "photos/old")); err == nil {
					t.Error("an entry beside the mount point stays")
				}
			}
			for _, p := range left {
				if _, err := os.Lstat(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
