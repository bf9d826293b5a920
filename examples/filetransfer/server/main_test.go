package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	ft "cinnabar/examples/filetransfer"
	"cinnabar/examples/filetransfer/internal/fttest"
	"cinnabar/verbs"
)

// The steps of the paper, seen from the client: what is on the server's disk when it says READY, and what the
// server asked of its device.
// parity: B03 B06 B08 B11 B21
func TestProtocolSteps(t *testing.T) {
	ts := startServer(t)
	size := func() int64 { return fttest.Must(os.Stat(filepath.Join(ts.dir, "test-file")))(t).Size() }
	p := ts.dial(t)
	p.want(ft.MsgMR)
	if p.to.Addr == 0 || p.to.RKey == 0 {
		t.Errorf("step 4: no region in % x", p.raw)
	}
	p.name("test-file")
	p.want(ft.MsgReady)
	if got := size(); got != 0 {
		t.Errorf("step 6: the file has %d bytes", got)
	}
	for i, chunk := range []int{ft.BufferSize, ft.BufferSize, 5} {
		p.write(bytes.Repeat([]byte{byte(i + 1)}, chunk), chunk)
		p.want(ft.MsgReady)
		if got, want := size(), int64(i*ft.BufferSize+chunk); got != want {
			t.Errorf("step 8: %d bytes on disk at READY, want %d", got, want)
		}
	}
	p.write(nil, 0)
	p.want(ft.MsgDone)
	if err := p.conn.Disconnect(p.ctx); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"waiting for connections. interrupt (^C) to exit.", "opening file test-file", "received 10485760 bytes.",
		"received 10485760 bytes.", "received 5 bytes.", "finished transferring test-file",
	} {
		if got := ts.out.wait(t, ""); got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
	want := "receive 0 entries, 0 bytes\naccept\nsend 24 bytes" + strings.Repeat("\nreceive 0 entries, 0 bytes\nsend 24 bytes", 4) + "\nsend 24 bytes"
	if diff := cmp.Diff(want, ts.journal.String()); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	got := fttest.Must(os.ReadFile(filepath.Join(ts.dir, "test-file")))(t)
	for i, at := range []int{0, ft.BufferSize, 2 * ft.BufferSize} {
		if got[at] != byte(i+1) {
			t.Errorf("byte %d of the file is %d", at, got[at])
		}
	}
}

// The server's messages are the bytes of the C program's struct, with the region in each.
// parity: B04
func TestMessagesOnTheWire(t *testing.T) {
	p := startServer(t).dial(t)
	p.want(ft.MsgMR)
	first := p.raw
	if binary.LittleEndian.Uint32(first) != 1 || binary.LittleEndian.Uint64(first[8:]) != p.to.Addr || binary.LittleEndian.Uint32(first[16:]) != p.to.RKey {
		t.Errorf("MR is % x", first)
	}
	p.name("x")
	p.want(ft.MsgReady)
	if !bytes.Equal(p.raw[8:], first[8:]) || p.raw[0] != 2 {
		t.Errorf("READY is % x after MR % x", p.raw, first)
	}
}

// parity: B10
func TestEmptyFile(t *testing.T) {
	ts := startServer(t)
	p := ts.dial(t)
	p.want(ft.MsgMR)
	p.name("empty")
	p.want(ft.MsgReady)
	p.write(nil, 0)
	p.want(ft.MsgDone)
	p.qp.Close() // not in order, but the file is whole
	ts.out.wait(t, "finished transferring empty")
	if got := fttest.Must(os.Stat(filepath.Join(ts.dir, "empty")))(t); got.Size() != 0 || got.Mode().Perm()&^0o644 != 0 {
		t.Errorf("%d bytes, mode %v", got.Size(), got.Mode())
	}
}

func TestExistingFile(t *testing.T) {
	ts := startServer(t)
	ts.transfer(t, "twice")
	p := ts.dial(t)
	p.want(ft.MsgMR)
	p.name("twice")
	p.refused()
	ts.err.wait(t, `file "twice": openat twice: file exists`)
	if got := string(fttest.Must(os.ReadFile(filepath.Join(ts.dir, "twice")))(t)); got != "twice" {
		t.Errorf("the file has now %q", got)
	}
	ts.transfer(t, "other")
}

// hostileNames are what no server writes to.
var hostileNames = map[string]string{
	"none":           "",
	"only NUL":       "\x00",
	"no NUL":         "name",
	"too long":       strings.Repeat("x", 256) + "\x00",
	"dot":            ".\x00",
	"parent":         "..\x00",
	"in parent":      "../x\x00",
	"absolute":       "/tmp/x\x00",
	"folder":         "a/b\x00",
	"backslash":      "..\\x\x00",
	"NUL inside":     "a\x00b\x00",
	"two NULs":       "a\x00\x00",
	"line feed":      "a\nb\x00",
	"escape":         "\x1b[2Ja\x00",
	"delete":         "a\x7f\x00",
	"C1 control":     "a\u009b2J\x00",
	"not UTF-8":      "a\xff\x00",
	"reversed":       "a\u202egpj.exe\x00",
	"a whole buffer": strings.Repeat("y", ft.BufferSize-1) + "\x00",
}

// parity: B40
func TestHostileNames(t *testing.T) {
	ts := startServer(t)
	for what, name := range hostileNames {
		t.Run(what, func(t *testing.T) {
			p := ts.dial(t)
			p.want(ft.MsgMR)
			p.write([]byte(name), len(name))
			p.refused()
			if line := ts.err.wait(t, "name"); len(line) > 2000 {
				t.Errorf("a message of %d bytes", len(line))
			}
			if got := ts.files(t); got != "" {
				t.Errorf("there are now files: %s", got)
			}
		})
	}
	ts.transfer(t, strings.Repeat("z", ft.MaxNameLen))
}

func TestParseName(t *testing.T) {
	for _, name := range []string{"a", "a b", "...", "..a", "-rf", "größe", "名前", strings.Repeat("x", ft.MaxNameLen)} {
		if got, err := parseName([]byte(name + "\x00")); err != nil || got != name {
			t.Errorf("parseName(%q): %q, %v", name, got, err)
		}
	}
	for what, name := range hostileNames {
		if got, err := parseName([]byte(name)); err == nil {
			t.Errorf("%s: parseName gave %q", what, got)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, name := range hostileNames {
		f.Add([]byte(name[:min(len(name), 300)]))
	}
	f.Add([]byte("test-file\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, err := parseName(b)
		if err != nil {
			return
		}
		if name+"\x00" != string(b) || !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." || len(name) > ft.MaxNameLen {
			t.Errorf("parseName(%q) gave %q", b, name)
		}
	})
}

// What a client may do wrong after it has got the region, and after it has named a file.
var misdeeds = map[string]func(p *peer){
	"more than the buffer": func(p *peer) { p.write([]byte("x\x00"), ft.BufferSize+1) },
	"4 GiB":                func(p *peer) { p.write([]byte("x\x00"), 1<<32-1) },
	"behind the buffer": func(p *peer) {
		p.to = p.to.Add(1)
		p.write(make([]byte, ft.BufferSize), ft.BufferSize)
	},
	"another key": func(p *peer) {
		p.to.RKey++
		p.write([]byte("x\x00"), 2)
	},
	"a message":        func(p *peer) { p.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{p.data.SGE(0, 1)}}) },
	"an empty message": func(p *peer) { p.post(verbs.SendWR{Op: verbs.OpSend}) },
	"a read": func(p *peer) {
		p.post(verbs.SendWR{Op: verbs.OpRead, Remote: p.to, SGL: []verbs.SGE{p.msgs.SGE(0, 1)}})
	},
	"leaving":   func(p *peer) { _ = p.conn.Disconnect(p.ctx) },
	"vanishing": func(p *peer) { _ = p.qp.Close() },
}

// parity: B43
func TestBadClients(t *testing.T) {
	ts := startServer(t)
	n := 0
	for what, do := range misdeeds {
		for _, chunks := range []int{-1, 0, 1} { // -1: before the file is named
			t.Run(fmt.Sprintf("%s after %d chunks", what, chunks), func(t *testing.T) {
				p := ts.dial(t)
				p.want(ft.MsgMR)
				if chunks >= 0 {
					p.name("half")
					p.want(ft.MsgReady)
				}
				for range chunks {
					p.write([]byte("chunk"), 5)
					p.want(ft.MsgReady)
				}
				do(p)
				p.refused()
				ts.err.wait(t, p.conn.LocalAddr().String())
				if got := ts.files(t); strings.Contains(got, "half") {
					t.Errorf("half a file is left: %s", got)
				}
				n++
				ts.transfer(t, fmt.Sprint("next", n))
			})
		}
	}
	t.Run("the end before the name", func(t *testing.T) {
		p := ts.dial(t)
		p.want(ft.MsgMR)
		p.write(nil, 0)
		p.refused()
		ts.err.wait(t, p.conn.LocalAddr().String())
	})
}

// A client that does not wait for READY hurts only its own file.
func TestImpatientClient(t *testing.T) {
	ts := startServer(t)
	p := ts.dial(t)
	p.want(ft.MsgMR)
	p.name("impatient")
	p.to = p.to.Add(ft.MaxNameLen + 1) // not where the server reads: the memory's content is not the point here
	for range 50 {
		p.write([]byte("x"), 1)
	}
	_ = p.qp.Close()
	ts.err.wait(t, p.conn.LocalAddr().String())
	ts.transfer(t, "patient")
	if got := ts.files(t); got != "patient" {
		t.Errorf("files: %s", got)
	}
}

func TestStopLeavesNoHalfFile(t *testing.T) {
	ts := startServer(t)
	ts.transfer(t, "whole")
	p := ts.dial(t)
	p.want(ft.MsgMR)
	p.name("half")
	p.want(ft.MsgReady)
	p.write([]byte("chunk"), 5)
	p.want(ft.MsgReady)
	ts.stop(t)
	p.refused()
	if got := ts.files(t); got != "whole" {
		t.Errorf("files: %s", got)
	}
}

// runServer runs the program with arguments with which it cannot serve.
func runServer(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"server"}, args...), &out, &errs)
	return code, errs.String()
}

func TestCommandLine(t *testing.T) {
	const usage = "usage: server [-listen HOST:PORT] [-dir DIR] [-device NAME]\n\nWithout -listen the server listens on every address"
	for _, args := range [][]string{{"file"}, {"-nonsense"}, {"-dir"}} {
		if code, got := runServer(t, args...); code != 1 || !strings.Contains(got, usage) {
			t.Errorf("%q: exit code %d, %q", args, code, got)
		}
	}
	if code, got := runServer(t, "-dir", filepath.Join(t.TempDir(), "none")); code != 1 || !strings.Contains(got, "none") {
		t.Errorf("no directory: exit code %d, %q", code, got)
	}
	if code, got := runServer(t, "-dir", t.TempDir(), "-device", "none0"); code != 1 || !strings.Contains(got, "RDMA") {
		t.Errorf("no device: exit code %d, %q", code, got)
	}
	ts := startServer(t)
	if code, got := runServer(t, "-dir", ts.dir, "-listen", ts.addr.String()); code != 1 || !strings.Contains(got, syscall.EADDRINUSE.Error()) || !strings.Contains(got, ts.addr.String()) {
		t.Errorf("address in use: exit code %d, %q", code, got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := run(ctx, []string{"server", "-listen", "127.0.0.1:0", "-dir", ts.dir}, newLines(), newLines()); code != 0 {
		t.Errorf("interrupted: exit code %d", code)
	}
}
