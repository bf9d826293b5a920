package filetransfer

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// openDevice opens a device that the test closes.
func openDevice(t *testing.T, cfg iwarp.Config) *verbs.Device {
	t.Helper()
	dev, err := iwarp.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// Package xfer sends to the paper's server, and finds out by itself that it has the basic protocol only.
func TestXferSendsToServer(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	dev := openDevice(t, iwarp.Config{})
	for _, tt := range []struct {
		name   string
		sender xfer.Sender
		size   int64
	}{
		{"auto-empty", xfer.Sender{}, 0},
		{"auto-byte", xfer.Sender{}, 1},
		{"auto-multiple", xfer.Sender{}, 2 * BufferSize},
		{"basic", xfer.Sender{Protocol: xfer.Basic}, 25 << 20},
		{"basic-small-chunks", xfer.Sender{Protocol: xfer.Basic, Chunk: 4096}, 1<<20 + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := input(t, tt.name, tt.size)
			src, file, err := xfer.OpenFile(path, false)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			result, err := tt.sender.Send(t.Context(), dev, netip.MustParseAddrPort(s.addr), src)
			if err != nil {
				t.Fatal(err)
			}
			if result.Protocol != xfer.Basic || !result.Immediate || result.Size != tt.size {
				t.Errorf("result: %+v", result)
			}
			await(s.Stdout, "finished transferring "+tt.name)
			if digest(t, path) != digest(t, filepath.Join(s.dir, tt.name)) {
				t.Error("it arrived with another digest")
			}
		})
	}
}

// What the paper's server refuses is an error of the sender.
func TestXferIsRefusedByServer(t *testing.T) {
	s := startServer(t, "127.0.0.1")
	path := input(t, "twice", 10)
	s.send(t, path)
	src, file, err := xfer.OpenFile(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dev := openDevice(t, iwarp.Config{})
	if _, err := (&xfer.Sender{}).Send(t.Context(), dev, netip.MustParseAddrPort(s.addr), src); err == nil || !strings.Contains(err.Error(), s.addr) {
		t.Errorf("got %v", err)
	}
	if _, err := (&xfer.Sender{Protocol: xfer.Fast}).Send(t.Context(), dev, netip.MustParseAddrPort(s.addr), src); err == nil {
		t.Error("the paper's server took the fast protocol")
	}
}

// receiver runs package xfer's receiver until the test ends.
func receiver(t *testing.T, dir string) (addr string, done <-chan error) {
	t.Helper()
	dev := openDevice(t, iwarp.Config{})
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	into, err := xfer.OpenDir(t.Context(), dir, xfer.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 100)
	r := &xfer.Receiver{Open: into.Open, Done: func(_ xfer.Result, err error) { ended <- err }}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		for _, c := range []interface{ Close() error }{l, into} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return l.Addr().String(), ended
}

// The paper's client sends to package xfer, which speaks the basic protocol to it.
func TestClientSendsToXfer(t *testing.T) {
	dir := t.TempDir()
	addr, done := receiver(t, dir)
	for _, size := range []int64{0, 1, BufferSize, 25 << 20} {
		name := fmt.Sprintf("file-%d", size)
		path := input(t, name, size)
		code, stdout, stderr := runClient(t, addr, path)
		if code != 0 || stderr != "" {
			t.Fatalf("%d bytes: the client ended with %d: %s", size, code, stderr)
		}
		if err := <-done; err != nil {
			t.Errorf("%d bytes: the receiver says %v", size, err)
		}
		if want := int((size+BufferSize-1)/BufferSize) + 1; strings.Count(stdout, "READY") != want {
			t.Errorf("%d bytes: not %d times READY in\n%s", size, want, stdout)
		}
		if digest(t, path) != digest(t, filepath.Join(dir, name)) {
			t.Errorf("%d bytes arrived with another digest", size)
		}
	}
}

// What package xfer refuses is an error of the paper's client.
func TestClientIsRefusedByXfer(t *testing.T) {
	dir := t.TempDir()
	addr, done := receiver(t, dir)
	path := input(t, "twice", 1000)
	for _, want := range []int{0, 1} {
		code, stdout, stderr := runClient(t, addr, path)
		if err := <-done; code != want || (err == nil) != (want == 0) || strings.Contains(stdout, "DONE") != (want == 0) {
			t.Errorf("the client ended with %d, want %d: %s%s; the receiver says %v", code, want, stdout, stderr, err)
		}
	}
}
