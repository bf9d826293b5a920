package powercut

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

var cuts = flag.Int("cuts", 3, "power cuts of a receiver that syncs")

// mostBlind bounds the cuts of a receiver that does not sync.
const mostBlind = 200

// After a power cut each file of a receiver with DirOptions.Sync is whole, or has not got its name; and everything is there that was reported as stored.
//
// parity: X06
func TestPowerCut(t *testing.T) {
	d := newDisk(t)
	for seed := range *cuts {
		c := &outage{disk: d, sync: true, random: rand.New(rand.NewPCG(uint64(seed), 6))}
		c.run()
		for _, damage := range c.damage {
			t.Errorf("cut %d: %s", seed, damage)
		}
		t.Logf("cut %d: after %v, %d stored, %d files whole", seed, c.after, len(c.stored), c.whole)
	}
}

// Without DirOptions.Sync some file is not whole after some cut, so that the test above would see one.
func TestPowerCutWithoutSync(t *testing.T) {
	d := newDisk(t)
	for seed := range mostBlind {
		c := &outage{disk: d, random: rand.New(rand.NewPCG(uint64(seed), 7))}
		c.run()
		if len(c.damage) > 0 {
			t.Logf("cut %d: %d damages, the first of which is: %s", seed, len(c.damage), c.damage[0])
			return
		}
	}
	t.Errorf("everything is whole after %d cuts, so that the test cannot see damage", mostBlind)
}

// outage is one power cut while a receiver works.
type outage struct {
	disk   *disk
	sync   bool
	random *rand.Rand

	after  time.Duration
	stored map[string]int // the version of each name that was reported as stored
	whole  int            // files
	damage []string
}

const longestWork = 400 * time.Millisecond

// run lets a receiver work, cuts the power, and looks at the disk.
func (c *outage) run() {
	t := c.disk.t
	t.Helper()
	c.disk.mount()
	in := filepath.Join(c.disk.at, "in")
	check(t, os.RemoveAll(in))
	check(t, os.Mkdir(in, 0o755))
	c.stored = map[string]int{}
	c.after = time.Duration(c.random.Int64N(int64(longestWork)))
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { c.receive(ctx, in) })
	work.Go(func() { c.neighbour(ctx) })
	<-time.NewTimer(c.after).C
	c.disk.cut()
	cancel()
	work.Wait()
	c.disk.unmount()
	c.disk.mount()
	c.look(in)
	c.disk.unmount()
}

// neighbour syncs a file of its own until the power is cut, as another program may do.
func (c *outage) neighbour(ctx context.Context) {
	f, err := os.Create(filepath.Join(c.disk.at, "neighbour"))
	for err == nil && ctx.Err() == nil {
		if _, err = f.WriteAt([]byte{1}, 0); err == nil {
			err = f.Sync()
		}
	}
	if f != nil {
		_ = f.Close() // the file system may be gone
	}
}

// receive stores trees and files, new ones and ones in the place of earlier ones, until one fails.
func (c *outage) receive(ctx context.Context, in string) {
	opt := tree.DirOptions{DirOptions: xfer.DirOptions{Overwrite: true, Sync: c.sync}}
	d, err := tree.OpenDir(ctx, in, opt)
	if err != nil {
		return // the power was cut before
	}
	defer func() { _ = d.Close() }() // the file system may be gone
	r := rand.New(rand.NewPCG(uint64(c.after), 8))
	for version := 1; ctx.Err() == nil; version++ {
		name := []string{"tree", fmt.Sprintf("tree%d", version), "file", fmt.Sprintf("file%d", version)}[r.IntN(4)]
		src := xfer.Source{Name: name, Data: bytes.NewReader(contents(name, version, 1, r.IntN(300_000)))}
		if strings.HasPrefix(name, "tree") {
			src = treeSource(ctx, name, version, r)
		} else {
			src.Size = src.Data.(*bytes.Reader).Size()
		}
		if store(d, src) != nil {
			return
		}
		c.stored[name] = version
	}
}

// treeSource returns a tree of small files, and some of a few hundred kilobytes.
func treeSource(ctx context.Context, name string, version int, r *rand.Rand) xfer.Source {
	fsys, n := fstest.MapFS{}, 1+r.IntN(60)
	for i := range n {
		p, size := fmt.Sprintf("d%d/f%d", i%5, i), r.IntN(8000)
		if r.IntN(20) == 0 {
			size *= 50
		}
		fsys[p] = &fstest.MapFile{Data: contents(path.Join(name, p), version, n, size), Mode: 0o644, ModTime: time.Unix(int64(1e9+version), 0)}
	}
	t, err := tree.Scan(ctx, fsys, name, tree.ScanOptions{Preserve: true})
	if err != nil {
		return xfer.Source{} // the test has ended
	}
	return t.Source()
}

// store stores a source as a transfer does.
func store(d *tree.Dir, src xfer.Source) error {
	f, err := d.Open(context.Background(), netip.AddrPort{}, src.Name, src.Meta, src.Size)
	if err != nil {
		return err
	}
	b := make([]byte, 64<<10)
	for at := int64(0); at < src.Size && err == nil; {
		var n int
		n, err = src.Data.ReadAt(b[:min(int64(len(b)), src.Size-at)], at)
		if err == nil {
			_, err = f.WriteAt(b[:n], at)
		}
		at += int64(n)
	}
	if err == nil {
		err = f.Commit()
	}
	if err != nil {
		return errors.Join(err, f.Discard())
	}
	return nil
}

// contents returns the bytes of a file: a line with its name, its version, the number of the tree's files and size, and then size random bytes, which follow
// from version and size. So look can compute the contents from the line.
func contents(name string, version, files, size int) []byte {
	b := fmt.Appendf(nil, "%s %d %d %d\n", name, version, files, size)
	r := rand.New(rand.NewPCG(uint64(version), uint64(size)))
	for range size {
		b = append(b, byte(r.Uint32()))
	}
	return b
}

// look reads everything that has a name, and compares it with what it should be.
func (c *outage) look(in string) {
	found := map[string]map[int]int{} // the number of files of each version, by the first element of their paths
	of := map[string]map[int]int{}    // and how many there should be
	err := filepath.WalkDir(in, func(at string, e fs.DirEntry, err error) error {
		if err != nil || at == in {
			return err
		}
		if strings.HasPrefix(e.Name(), ".cinnabar-") { // it has not got its name
			if e.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !e.Type().IsRegular() {
			return nil
		}
		name := filepath.ToSlash(strings.TrimPrefix(at, in+string(filepath.Separator)))
		b, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		var is string
		var version, files, size int
		if _, err := fmt.Sscanf(string(b[:min(len(b), 200)]), "%s %d %d %d\n", &is, &version, &files, &size); err != nil || is != name || !bytes.Equal(b, contents(is, version, files, size)) {
			c.damage = append(c.damage, fmt.Sprintf("%s has %d bytes, which are not all of a version", name, len(b)))
			return nil
		}
		c.whole++
		top, _, _ := strings.Cut(name, "/")
		if found[top] == nil {
			found[top], of[top] = map[int]int{}, map[int]int{}
		}
		found[top][version]++
		of[top][version] = files
		return nil
	})
	check(c.disk.t, err)
	for name, version := range c.stored {
		if n := found[name][version]; n < of[name][version] || n == 0 {
			newer := false // the next one was under way
			for v := range found[name] {
				newer = newer || v > version
			}
			if !newer {
				c.damage = append(c.damage, fmt.Sprintf("of %s, which was stored, version %d has %d files of %d", name, version, n, of[name][version]))
			}
		}
	}
	for name, versions := range found {
		for version, n := range versions {
			if name != "tree" && n != of[name][version] { // a new tree appears at once
				c.damage = append(c.damage, fmt.Sprintf("%s has %d files of %d", name, n, of[name][version]))
			}
		}
	}
}
