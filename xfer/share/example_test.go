package share_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
	"cinnabar/xfer/share"
)

// A server and a puller in one process.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	public, err := os.MkdirTemp("", "public")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(public) }() // the system removes it otherwise
	if err := os.WriteFile(filepath.Join(public, "notes.txt"), []byte("hello"), 0o644); err != nil {
		log.Fatal(err)
	}
	dir, err := share.OpenDir(public, share.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	refuse := func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) {
		return nil, xfer.CodeStorage
	}
	server := xfer.Receiver{Open: refuse, Files: dir.Files}
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx, l) }()

	entries, err := share.List(ctx, xfer.Puller{}, dev, l.Addr(), ".")
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		fmt.Println(e.Kind, e.Name, e.Size)
	}
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: file notes.txt 5
}
