package tree_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing/fstest"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

// A receiver and a sender of one process move a tree into a directory.
func Example() {
	if err := moveTree(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// . directory
	// notes directory
	// notes/today.txt file
	// received photos: the quick brown fox jumps.
}

func moveTree() (err error) {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	incoming, err := os.MkdirTemp("", "incoming")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(incoming)) }()

	// The receiver: trees and files go into one directory.
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := tree.OpenDir(ctx, incoming, tree.DirOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	served := make(chan error, 1)
	go func() {
		r := xfer.Receiver{Open: dir.Open}
		served <- r.Serve(ctx, l)
	}()
	defer func() { cancel(); err = errors.Join(err, <-served) }()

	// The sender: any fs.FS will do; tree.ScanDir lists a directory.
	patterns, err := tree.ParsePatterns("*.tmp")
	if err != nil {
		return err
	}
	fsys := fstest.MapFS{"notes/today.txt": {Data: []byte("the quick brown fox jumps.")}, "notes/x.tmp": {}}
	t, err := tree.Scan(ctx, fsys, "photos", tree.ScanOptions{Patterns: patterns})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for path, entry := range t.Manifest().All() {
		fmt.Println(path, entry.Kind)
	}
	s := xfer.Sender{Protocol: xfer.Fast}
	if _, err = s.Send(ctx, dev, l.Addr(), t.Source()); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(incoming, "photos", "notes", "today.txt"))
	fmt.Printf("received photos: %s\n", got)
	return err
}
