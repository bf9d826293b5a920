package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"cinnabar/xfer"
)

// refusals lists the names and links that this directory cannot or may not store on the system goos.
func (d *Dir) refusals(m *Manifest, goos string) *RefusedError {
	refused := &RefusedError{}
	for i := 1; i < len(m.Entries); i++ { // the root has the name of the tree
		e := &m.Entries[i]
		if reason := d.refuses(e, goos); reason != "" {
			refused.add(m.Path(i), reason)
		}
	}
	return refused
}

// refuses returns the reason for which an entry cannot or may not be stored, or "".
func (d *Dir) refuses(e *Entry, goos string) string {
	if err := xfer.CheckName(e.Name); err != nil {
		return err.Error()
	}
	if !d.opt.AllowDotFiles && e.Name[0] == '.' {
		return "the name begins with a dot, and this receiver takes no such names"
	}
	if goos == "windows" {
		if reason := refusedByWindows(e.Name); reason != "" {
			return reason
		}
	}
	if e.Kind == Symlink {
		switch {
		case e.Target == "" || strings.IndexByte(e.Target, 0) >= 0:
			return "the target of the symbolic link is empty, or has a NUL inside"
		case !d.opt.AllowOutsideLinks && leadsOut(e.Target, e.Depth-1, goos):
			return fmt.Sprintf("the symbolic link to %s may lead out of the tree, and this receiver takes no such links", quote(e.Target))
		}
	}
	return ""
}

// refusedByWindows returns the reason for which Windows cannot store a name that has no separators and no control characters. It also
// looks at the names of devices, because CheckName knows those of its own system only.
func refusedByWindows(name string) string {
	stem, _, _ := strings.Cut(strings.ToUpper(name), ".")
	stem = strings.TrimRight(stem, " ")
	switch {
	case strings.ContainsAny(name, `<>:"|?*\`):
		return `Windows has no names with one of <>:"|?*\`
	case strings.HasSuffix(name, ".") || strings.HasSuffix(name, " "):
		return "Windows has no names that end with a dot or a space"
	case windowsDevices[stem]:
		return "it is the name of a device of Windows"
	}
	return ""
}

var windowsDevices = func() map[string]bool {
	names := map[string]bool{"CON": true, "PRN": true, "AUX": true, "NUL": true, "CONIN$": true, "CONOUT$": true}
	for _, n := range []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "¹", "²", "³"} {
		names["COM"+n], names["LPT"+n] = true, true
	}
	return names
}()

// leadsOut reports whether a symbolic link, in a directory with so many above it in the tree, may lead out of the tree. A ".." behind
// another element may, even where it does not seem to, because that element may be a symbolic link itself.
func leadsOut(target string, above int, goos string) bool {
	if goos == "windows" {
		if strings.Contains(target, ":") {
			return true
		}
		target = strings.ReplaceAll(target, `\`, "/")
	}
	if strings.HasPrefix(target, "/") {
		return true
	}
	leading := true
	for element := range strings.SplitSeq(target, "/") {
		switch {
		case element == "" || element == ".":
		case element != "..":
			leading = false
		case !leading || above == 0:
			return true
		default:
			above--
		}
	}
	return false
}

// foldsCase reports whether the directory takes two names that differ in their case for one: the temporary name has small letters.
func (d *Dir) foldsCase(temp string) bool {
	_, err := d.root.Lstat(strings.ToUpper(temp))
	return err == nil
}

// refuseCollisions adds the entries with names that differ from another one of their directory in their case only.
func refuseCollisions(m *Manifest, refused *RefusedError) {
	type key struct {
		parent int
		folded string
	}
	seen := make(map[key]string, len(m.Entries))
	for i := 1; i < len(m.Entries); i++ {
		e := &m.Entries[i]
		k := key{e.parent, strings.ToLower(strings.ToUpper(e.Name))}
		if other, twice := seen[k]; twice {
			refused.add(m.Path(i), fmt.Sprintf("the receiver's file system takes it for %s", quote(other)))
			continue
		}
		seen[k] = e.Name
	}
}

// storageFailure is a failure of the receiver's file system. Its text has no path of the receiver.
func storageFailure(doing, name string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		err = le.Err
	}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		err = fmt.Errorf("the disk of the receiver's directory is full: %w", err)
	case errors.Is(err, syscall.EDQUOT):
		err = fmt.Errorf("the receiver's quota on the disk of its directory is used up: %w", err)
	}
	return failf(xfer.CodeStorage, "cannot %s %s: %w", doing, quote(name), err)
}
