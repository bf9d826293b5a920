package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Create makes a file of size zero bytes at path, which must not exist, accessible for this user only, and maps it.
func Create(path string, size int) (*Region, error) {
	fd, err := openFile(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, err
	}
	r, err := create(fd, path, size)
	if err != nil {
		_ = os.Remove(path) // the error at hand is the one to return
		return nil, err
	}
	return r, nil
}

// create sizes and maps a new file, and closes its descriptor.
func create(fd int, path string, size int) (*Region, error) {
	defer closeFD(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, &os.PathError{Op: "truncate", Path: path, Err: err}
	}
	f, err := FileOf(fd)
	if err != nil {
		return nil, err
	}
	return mapFile(fd, path, size, f)
}

// FileOf describes the file of an open descriptor.
func FileOf(fd int) (File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return File{}, os.NewSyscallError("fstat", err)
	}
	return fileOf(&st), nil
}

func fileOf(st *unix.Stat_t) File {
	return File{Dev: st.Dev, Ino: st.Ino, UID: st.Uid, Mode: st.Mode}
}

// Open maps the file at path, which must be a regular one of want bytes at least; all of it, but not more than limit. A
// symbolic link is not followed. The caller checks the owner ([Region.File]) before it trusts the contents.
func Open(path string, want, limit int) (*Region, error) {
	fd, err := openFile(path, unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("shm: %s is not a file", path)
	}
	if err := checkSize(path, st.Size, want); err != nil {
		return nil, err
	}
	return mapFile(fd, path, int(min(st.Size, int64(limit))), fileOf(&st))
}

// Extend gives the file at path, if that is still f, its size back.
func Extend(path string, f File, size int) error {
	fd, err := openFile(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	now, err := FileOf(fd)
	if err != nil {
		return err
	}
	if !now.Same(f) {
		return fmt.Errorf("shm: %s is another file by now", path)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return &os.PathError{Op: "truncate", Path: path, Err: err}
	}
	return nil
}

// Private returns zeroed memory of this process alone.
func Private(size int) (*Region, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes: %w", size, err)
	}
	return &Region{mem: mem}, nil
}

func openFile(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

func mapFile(fd int, path string, size int, f File) (*Region, error) {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	return &Region{mem: mem, name: path, file: f}, nil
}

// closeFD closes a descriptor. An error would lose no data, because nothing is written through it.
func closeFD(fd int) { _ = unix.Close(fd) }

// Close unmaps the region; the file stays. No goroutine may use the memory of the region any more.
func (r *Region) Close() error {
	mem := r.mem
	if mem == nil {
		return nil
	}
	r.mem = nil
	return os.NewSyscallError("munmap", unix.Munmap(mem))
}

// Unused reports whether no process has the file at path open or mapped, this one included. The kernel checks that before it grants a
// lease for writing (fcntl F_SETLEASE); Unused gives the lease back at once.
func Unused(path string) (bool, error) {
	fd, err := openFile(path, unix.O_RDWR)
	if err != nil {
		return false, err
	}
	defer closeFD(fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("fcntl", err)
}
