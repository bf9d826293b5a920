// Package powercut tests that with DirOptions.Sync each file that has its name is whole after a power cut.
//
// TestPowerCut stores trees and files in an ext4 file system of its own, and ends that file system at a random moment as a power cut does. The request
// FS_IOC_SHUTDOWN does that: after it neither data nor the journal reach the disk, so all that was not written before is lost. Then the test mounts the file
// system again, which replays the journal, and reads all files. Another goroutine syncs a file of its own all the time, as another program may do, because
// that brings names to the disk whose data are not there yet.
//
//	go test ./test/powercut                     3 cuts
//	go test -v ./test/powercut -cuts 60         60 cuts
//
// TestPowerCutWithoutSync cuts the power of receivers without DirOptions.Sync until it finds a file that is not whole. This shows that TestPowerCut would find
// such a file.
//
// The tests do not cover a disk with a cache that loses its contents in a power cut. The kernel makes such a disk write its cache.
//
// They need Linux, root, mkfs.ext4, and a loop device or the block device of the variable CINNABAR_POWERCUT_DEVICE, whose contents they overwrite. The package
// has tests only.
package powercut
