package lint

import (
	"path"
	"slices"
	"strings"
)

// unsafeDirs are the packages that may import unsafe: mapped and pinned memory, the address structures of socket calls,
// memory shared with other processes, the buffers of raw system calls, and memory shared with drivers, to which commands name addresses. Their exported functions take and return slices, integers and typed atomics, so
// nothing above them needs it.
var unsafeDirs = []string{"internal/hostmem", "internal/sockio", "internal/shm", "internal/rawcall", "verbs/internal/uverbs"}

// cgoDir is the one package that may use cgo, in files behind a build tag, because cards are reached through C libraries. Its files that
// import "C" end in _cgo.go, and may import unsafe.
const cgoDir = "verbs/rdmacore"

// checkCorners reports unsafe and cgo outside their packages and their files.
func checkCorners(t *tree) []finding {
	var found []finding
	for _, f := range t.files {
		if f.syntax == nil {
			continue
		}
		for _, spec := range f.syntax.Imports {
			if text := cornerRule(f, importPath(spec)); text != "" {
				found = append(found, finding{f.path, t.line(spec.Pos()), text})
			}
		}
	}
	return found
}

// cornerRule returns the finding about the import of imp in f, or "" if f may import it.
func cornerRule(f *file, imp string) string {
	cgoFile := f.dir() == cgoDir && strings.HasSuffix(f.path, "_cgo.go")
	switch {
	case imp == "C" && !cgoFile:
		return "cgo has no place here: the default build needs none; it is allowed only in files of " + cgoDir + " that end in _cgo.go"
	case imp != "unsafe" || cgoFile:
		return ""
	case !slices.Contains(unsafeDirs, f.dir()):
		return "unsafe is allowed only in " + strings.Join(unsafeDirs, ", ")
	case !namedUnsafe(path.Base(f.path)):
		return "a file that imports unsafe ends in _unsafe.go, _unsafe_GOOS.go or _GOOS_unsafe.go"
	}
	return ""
}

// namedUnsafe reports whether the last or the last but one word of a file's name is "unsafe"; a _test suffix does not count.
func namedUnsafe(base string) bool {
	words := strings.Split(strings.TrimSuffix(strings.TrimSuffix(base, ".go"), "_test"), "_")
	n := len(words)
	return words[n-1] == "unsafe" || n > 1 && words[n-2] == "unsafe"
}
