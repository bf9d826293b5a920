package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/hostmem"
)

// Sizes of memory in bytes.
const (
	lockLeast  = 4 << 10   // the first size that memlock tries; each further one is four times as large
	lockMost   = 64 << 20  // the last size
	lockWanted = 1 << 20   // enough for the buffers of a connection over ofi+verbs, and a little data
	lowMemory  = 256 << 20 // less is worth a warning
	noMemory   = 32 << 20  // less is a fault, because an engine needs as much
	endpointSM = 10 << 20  // a server on na+sm needs at most this in /dev/shm
	socketTmp  = 64 << 10  // a server on na+sm needs at most this in /tmp
	smallShm   = 64 << 20  // a smaller /dev/shm is worth a warning
)

const lockRemedy = "raise the limit (ulimit -l unlimited, memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, " +
	"--ulimit memlock=-1 for a container), or grant CAP_IPC_LOCK"

// limitText prints a limit in bytes.
func limitText(n uint64) string {
	if n == hostmem.Unlimited {
		return "unlimited"
	}
	return cli.SizeText(int64(min(n, 1<<62)))
}

// probeMemlock locks memory, because the limit alone does not say whether a lock succeeds: a capability may lift it, and a control group
// may be out of memory.
func probeMemlock(ctx context.Context, x *exam) {
	soft := "unknown"
	l, known := x.limit(resourceMemlock)
	if known {
		soft = limitText(l.soft)
	}
	most := lockMost
	if free, ok := kib(x.word("proc/meminfo"), "MemAvailable"); ok && free/8 < lockMost {
		most = int(max(free/8, lockLeast)) // the probe should not cause a lack of memory
	}
	if l, ok := x.memoryLimit(); ok { // the kernel kills a process that exceeds the limit of its control group
		most = int(min(int64(most), max((l.most-max(l.used, 0))/8, lockLeast)))
	}
	b, err := hostmem.Map(most)
	if err != nil {
		x.add(levelFault, fmt.Sprintf("%s of memory cannot be mapped", cli.SizeText(int64(most))), cli.OneLine(err), "free memory, or raise the limit on address space (ulimit -v)")
		return
	}
	locked := 0
	for n := min(lockLeast, most); n <= most && ctx.Err() == nil; n *= 4 {
		if err = x.lock(b[:n]); err != nil {
			break
		}
		locked = n
		if err = hostmem.Unlock(b[:n]); err != nil {
			break
		}
	}
	err = errors.Join(err, hostmem.Unmap(b))
	hardware := x.exists("sys/class/infiniband")
	size := cli.SizeText(int64(locked))
	switch {
	case err == nil && ctx.Err() != nil:
		x.notTried("the time-out ended the probe after %s", size)
	case err == nil:
		x.ok("%s can be locked; RLIMIT_MEMLOCK is %s", size, soft)
	case locked == 0:
		x.add(levelFault, "no memory can be locked", fmt.Sprintf("RLIMIT_MEMLOCK is %s: %s", soft, cli.OneLine(err)), lockRemedy)
	case known && uint64(locked)*4 <= l.soft:
		x.add(levelWarning, fmt.Sprintf("only %s can be locked, although RLIMIT_MEMLOCK is %s", size, soft), cli.OneLine(err), "free memory, or raise the memory limit of the control group")
	case locked < lockWanted || hardware:
		x.add(levelWarning, fmt.Sprintf("only %s can be locked, which limits registered memory", size), "RLIMIT_MEMLOCK is "+soft, lockRemedy)
	default:
		x.add(levelNote, fmt.Sprintf("%s can be locked; RDMA hardware may need more", size), "RLIMIT_MEMLOCK is "+soft, lockRemedy)
	}
}

func probeMemory(_ context.Context, x *exam) {
	text := x.word("proc/meminfo")
	total, ok := kib(text, "MemTotal")
	free, known := kib(text, "MemAvailable")
	if !ok || !known {
		x.notTried("/proc/meminfo has no MemTotal and MemAvailable")
		return
	}
	l, cause := levelOK, ""
	finding := fmt.Sprintf("%s of %s are available", cli.SizeText(free), cli.SizeText(total))
	switch {
	case free < noMemory:
		l, cause = levelFault, "an engine needs "+cli.SizeText(noMemory)
	case free < lowMemory:
		l, cause = levelWarning, "transfers and connections may fail for lack of memory"
	}
	remedy := ""
	if l != levelOK {
		remedy = "end other processes, or lower the limits of engines (--max-memory)"
	}
	x.add(l, finding, cause, remedy)
}

func probeHugePages(_ context.Context, x *exam) {
	text := x.word("proc/meminfo")
	total, ok := field(text, "HugePages_Total")
	if !ok {
		x.add(levelNote, "this kernel has no huge pages", "/proc/meminfo has no HugePages_Total", "")
		return
	}
	free, _ := field(text, "HugePages_Free")
	size, _ := field(text, "Hugepagesize")
	switch {
	case total == "0":
		x.add(levelNote, "no huge pages are reserved", "vm.nr_hugepages is 0", "sysctl vm.nr_hugepages=N, if large regions are registered on RDMA hardware; nothing else needs them")
	case free == "0":
		x.add(levelWarning, fmt.Sprintf("all %s huge pages of %s are in use", total, size), "", "sysctl vm.nr_hugepages=N with a larger N")
	default:
		x.ok("%s of %s huge pages of %s are free", free, total, size)
	}
	if mode := x.word("sys/kernel/mm/transparent_hugepage/enabled"); strings.Contains(mode, "[never]") {
		x.add(levelNote, "transparent huge pages are off", "transparent_hugepage/enabled is "+mode, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, for faster copies of large memory")
	}
}

// probeShm tries the directory of na+sm's memory.
func probeShm(_ context.Context, x *exam) {
	const dir = "/dev/shm"
	s, ok := x.directory(dir, endpointSM, "mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
	if !ok {
		return
	}
	switch {
	case s.total < smallShm:
		x.add(levelWarning, fmt.Sprintf("%s has only %s", dir, cli.SizeText(int64(s.total))), "it is the size of the mount", "mount -o remount,size=1g /dev/shm; for a container --shm-size=1g, in Kubernetes an emptyDir of medium Memory at /dev/shm")
	case !s.tmpfs:
		x.add(levelNote, dir+" is no tmpfs", "another file system is mounted there, or it is a plain directory", "mount -t tmpfs -o mode=1777 tmpfs /dev/shm; otherwise shared memory is written to a disk")
	default:
		x.ok("%s: %s of %s are free, and %s could be reserved", dir, cli.SizeText(int64(s.free)), cli.SizeText(int64(s.total)), cli.SizeText(endpointSM))
	}
}

func probeTmp(_ context.Context, x *exam) {
	if s, ok := x.directory("/tmp", socketTmp, "mkdir -m 1777 /tmp"); ok {
		x.ok("/tmp: %s are free", cli.SizeText(int64(s.free)))
	}
}

// directory makes a file in a directory that all users share. It returns false after a finding.
func (x *exam) directory(dir string, need int64, create string) (space, bool) {
	st, err := os.Stat(x.path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.add(levelFault, dir+" does not exist", "na+sm needs it", create)
		return space{}, false
	case err != nil:
		x.notTried("%v", err)
		return space{}, false
	case !st.IsDir():
		x.add(levelFault, dir+" is no directory", "it is "+st.Mode().String(), "remove it, and "+create)
		return space{}, false
	}
	if m := st.Mode(); m.Perm()&0o002 != 0 && m&fs.ModeSticky == 0 {
		x.add(levelWarning, fmt.Sprintf("every user may remove the files of others in %s", dir), fmt.Sprintf("its mode is %#o, without the sticky bit", m.Perm()), "chmod 1777 "+dir)
	}
	s, err := spaceOf(x.path(dir))
	if err != nil {
		x.notTried("%v", err)
		return s, false
	}
	free := fmt.Sprintf("%s of %s are free", cli.SizeText(int64(s.free)), cli.SizeText(int64(s.total)))
	switch err := reserve(x.path(dir), need); {
	case err == nil:
		return s, true
	case errors.Is(err, fs.ErrPermission):
		x.add(levelFault, "this user may make no files in "+dir, fmt.Sprintf("its mode is %v: %v", st.Mode(), cli.OneLine(err)), "chmod 1777 "+dir)
	case isNoSpace(err):
		x.add(levelFault, fmt.Sprintf("%s of %s cannot be reserved", cli.SizeText(need), dir), free+": "+cli.OneLine(err), "remove files there, or make it larger: mount -o remount,size=1g "+dir)
	case errors.Is(err, syscall.EFBIG):
		x.add(levelFault, fmt.Sprintf("no file of %s can be made in %s", cli.SizeText(need), dir), "the limit RLIMIT_FSIZE on the size of files: "+cli.OneLine(err), "ulimit -f unlimited, or LimitFSIZE=infinity in a systemd unit")
	default:
		x.add(levelFault, "no file can be made in "+dir, cli.OneLine(err), "mount it for writing: mount -o remount,rw "+dir)
	}
	return s, false
}

// probeNames looks for files of na+sm whose processes have ended. The files of a process in another process namespace look the same. Therefore the
// remedy is a command that removes only files which no process has mapped.
func probeNames(_ context.Context, x *exam) {
	list, err := x.names("dev/shm")
	if err != nil {
		x.notTried("%v", err)
		return
	}
	stale, bytes, mine, foreign := 0, int64(0), 0, ""
	for _, name := range list {
		pid, ok := ownerOf(name)
		if !ok {
			continue
		}
		mine++
		st, err := os.Lstat(x.path("dev/shm/" + name))
		if err != nil || x.exists("proc/"+strconv.Itoa(pid)) {
			continue
		}
		stale++
		bytes += st.Size()
		if stale == 1 {
			foreign = name
		}
	}
	if stale == 0 {
		x.ok("%d files of na+sm, none of an ended process", mine)
		return
	}
	x.add(levelNote, fmt.Sprintf("%d of %d files of na+sm in /dev/shm are of ended processes (%s)", stale, mine, cli.SizeText(bytes)),
		"processes on na+sm were killed, such as the one of "+foreign, "cinnabar info na+sm removes those of this user that no process uses")
}

// ownerOf returns the process in a name that Mercury gives to the memory of an endpoint: "na_sm-1234-0".
func ownerOf(name string) (pid int, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "."), "na_sm-")
	number, id, found := strings.Cut(rest, "-")
	if !ok || !found {
		return 0, false
	}
	pid, err := strconv.Atoi(number)
	_, idErr := strconv.ParseUint(id, 10, 8)
	return pid, err == nil && idErr == nil && pid > 0
}
