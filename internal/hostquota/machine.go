package hostquota

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Capacity is the memory and the number of descriptors that this machine allows the process, each with its source.
type Capacity struct {
	Memory       int64  // bytes: the smaller of physical memory and the limits of the control groups
	MemorySource string // "physical memory", "cgroup /user.slice: memory.max"
	Files        int64  // open descriptors
	FilesSource  string // "RLIMIT_NOFILE"
}

// Figures that stand in where the system gives none.
const (
	assumedMemory = 4 << 30
	assumedFiles  = 8192
)

// Machine returns the capacity of this machine. It is read once.
var Machine = sync.OnceValue(func() Capacity {
	c := Capacity{Memory: assumedMemory, MemorySource: "assumed", Files: assumedFiles, FilesSource: "assumed"}
	if n := physicalMemory(); n > 0 {
		c.Memory, c.MemorySource = n, "physical memory"
	}
	if n, source := groupMemory("/"); n > 0 && n < c.Memory {
		c.Memory, c.MemorySource = n, source
	}
	if n := openFiles(); n > 0 {
		c.Files, c.FilesSource = n, "RLIMIT_NOFILE"
	}
	return c
})

// DefaultMemory returns the bytes that an engine, device or receiver may hold for its peers unless it is configured:
// half of the machine's capacity.
func (c Capacity) DefaultMemory() int64 { return c.Memory / 2 }

// DefaultConnections returns how many connections of so many descriptors each there may be unless it is configured. A
// quarter of the descriptors, 1,024 at most, is left to the program.
func (c Capacity) DefaultConnections(descriptors int64) int64 {
	return max(1, (c.Files-min(c.Files/4, 1024))/descriptors)
}

// groupMemory returns the least memory limit of the control groups that this process is in, and its source; 0: none. root
// is the root directory, which tests replace. Errors count as no limit, because a container may hide the files.
func groupMemory(root string) (least int64, source string) {
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, ""
	}
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(fields) != 3 {
			continue
		}
		base, file := "sys/fs/cgroup", "memory.max"
		switch {
		case fields[1] == "": // version 2
		case strings.Contains(","+fields[1]+",", ",memory,"):
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for dir := filepath.Clean("/" + fields[2]); ; dir = filepath.Dir(dir) {
			if n := limitIn(filepath.Join(root, base, dir, file)); n > 0 && (least == 0 || n < least) {
				least, source = n, "cgroup "+dir+": "+file
			}
			if dir == "/" {
				break
			}
		}
	}
	return least, source
}

// unlimited is the least value that version 1 writes where there is no limit.
const unlimited = math.MaxInt64 / 2

// limitIn reads a limit from a file; 0: there is none.
func limitIn(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
	if err != nil || n >= unlimited {
		return 0
	}
	return n
}
