package xfer_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// A receiver and a sender of one process move a file into a directory.
func Example() {
	if err := moveFile(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// sent 26 bytes by the fast protocol
	// received test-file: the quick brown fox jumps.
}

func moveFile() (err error) {
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

	// The receiver: everything that comes goes into one directory.
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := xfer.OpenDir(ctx, incoming, xfer.DirOptions{})
	if err != nil {
		return err
	}
	defer dir.Close()
	served := make(chan error, 1)
	go func() {
		r := xfer.Receiver{Open: dir.Open}
		served <- r.Serve(ctx, l)
	}()
	defer func() { cancel(); err = errors.Join(err, <-served) }()

	// The sender: any source that can be read at offsets will do.
	const text = "the quick brown fox jumps."
	var s xfer.Sender
	res, err := s.Send(ctx, dev, l.Addr(), xfer.Source{Name: "test-file", Data: strings.NewReader(text), Size: int64(len(text))})
	if err != nil {
		return err
	}
	fmt.Printf("sent %d bytes by the %v protocol\n", res.Size, res.Protocol)

	got, err := os.ReadFile(filepath.Join(incoming, "test-file"))
	fmt.Printf("received test-file: %s\n", got)
	return err
}

// A sender branches on why a transfer failed, wherever that was found out.
func ExampleCode() {
	err := error(&xfer.Error{Op: "send", Name: "test-file", Code: xfer.CodeExists, Remote: true,
		Err: errors.New(`the receiver has a file "test-file" and does not overwrite`)})
	if errors.Is(err, xfer.CodeExists) {
		fmt.Println(err)
	}
	// Output:
	// send "test-file": the peer says: file exists: the receiver has a file "test-file" and does not overwrite
}
