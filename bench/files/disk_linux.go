package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// syncDisks writes everything to the disks, so that a measurement does not begin with the writes of another one.
func syncDisks() { unix.Sync() }

// fileSystem names the file system that has a directory.
func fileSystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "unknown"
	}
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs"}
	if name, known := names[int64(st.Type)]; known { //nolint:unconvert // Type has another type on some processors
		return name
	}
	return fmt.Sprintf("%#x", st.Type)
}
