// Package powercut shows that with DirOptions.Sync no file under its name is half after a power cut.
//
// Its test stores trees and files in a file system of its own, ext4, and ends that file system at random moments as a power cut does: by the request
// FS_IOC_SHUTDOWN, after which nothing reaches the disk any more, neither data nor the journal. What was not written before is lost. Then it mounts the file system again, which
// replays the journal, and reads everything. A second program, so to say, syncs another file all the time, because that brings names to the disk whose data are
// not there yet.
//
//	go test ./test/powercut                     a few cuts
//	go test -v ./test/powercut -cuts 60         60 of them
//
// The test also cuts the power of receivers without DirOptions.Sync, until it has found a file that is not whole, which shows that it would see one.
//
// The disk is one without a cache of its own that loses its contents: whether the file system makes such a disk write its cache is a matter of the kernel.
//
// It needs Linux, root, and a loop device or the block device of the variable CINNABAR_POWERCUT_DEVICE, whose contents it overwrites. There is no other code here.
package powercut
