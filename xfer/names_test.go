package xfer

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cinnabar/verbs/iwarp"
)

// A sender that tries again at once after it was lost is not refused because of its own transfer before. It waits no longer than the transfer of the
// name lasts, than its context, and than nameWait.
func TestNameOfLostSender(t *testing.T) {
	var names namesUnder
	f := &everything{}
	free := func() (File, error) { return f, nil }
	tries := 0
	taken := func() (File, error) {
		tries++
		return nil, failf(CodeExists, "it is there")
	}
	_, end, err := names.open(t.Context(), "a", free)
	if err != nil {
		t.Fatal(err)
	}
	again := make(chan error, 1)
	waits := make(chan struct{}, 1)
	go func() {
		first := true
		_, end, err := names.open(context.WithoutCancel(t.Context()), "a", func() (File, error) {
			if first {
				first = false
				waits <- struct{}{}
				return taken()
			}
			return free()
		})
		if err == nil {
			end()
		}
		again <- err
	}()
	<-waits
	end()
	if err := <-again; err != nil || names.over("a") != nil {
		t.Errorf("after the end of the transfer of the name: %v", err)
	}
	for name, do := range map[string]func() (File, error){
		"no transfer of the name": taken,
		"another failure":         func() (File, error) { return nil, failf(CodeStorage, "full") },
	} {
		if _, _, err := names.open(t.Context(), "b", do); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_, end, _ = names.open(t.Context(), "c", free)
	defer end()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{canceled, t.Context()} { // the second waits for nameWait
		tries = 0
		if _, _, err := names.open(ctx, "c", taken); !errors.Is(err, CodeExists) || tries != 1 {
			t.Errorf("got %v after %d tries", err, tries)
		}
	}
}

// The same with a receiver: the second request comes while the first transfer of the name goes on, which fails then.
func TestSendAgainAtOnce(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{KeepFor: time.Hour})
	dev := device(t, iwarp.Config{})
	data := noise(1 << 20)
	lost, lose := context.WithCancel(ctx)
	src := sourceOf("f", data)
	reading := make(chan struct{})
	begun := sync.OnceFunc(func() { close(reading) })
	again := make(chan struct{}) // closed when the second has ended
	src.Data = readHook{src.Data, func(offset int64) {
		if offset > 0 {
			begun()
			<-again // so that the first cannot end in time
		}
	}}
	first := make(chan error, 1)
	go func() {
		_, err := (&Sender{Chunk: 256 << 10}).Send(lost, dev, srv.addr, src)
		first <- err
	}()
	<-reading
	second := make(chan error, 1)
	opened := make(chan struct{})
	go func() {
		s := Sender{Progress: func() Progress { close(opened); return &progressSum{t: t} }}
		_, err := s.Send(ctx, dev, srv.addr, chosenOf(data, 0))
		second <- err
	}()
	<-opened
	lose()
	if err := <-second; err != nil {
		t.Error(err)
	}
	close(again)
	wantCode(t, <-first, CodeCanceled, false)
	srv.wantFile("f", data)
}

// slowDisk is a file that blocks writes from offset at on, until run is closed.
type slowDisk struct {
	*dirFile
	at  int64
	run <-chan struct{}
}

func (f slowDisk) WriteAt(b []byte, offset int64) (int, error) {
	if offset >= f.at {
		<-f.run
	}
	return f.dirFile.WriteAt(b, offset)
}

// A receiver with a slow disk gives the sender the reason after its timeout, and a second try waits for the end of the first, and goes on where that stopped.
//
// parity: X02
func TestSlowDiskGivesReason(t *testing.T) {
	needsLocks(t)
	ctx := testContext(t)
	data := noise(4 * resumeBlock)
	run := make(chan struct{})
	var dir *Dir
	r := Receiver{Timeout: 200 * time.Millisecond, Open: func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
		f, err := dir.Open(ctx, from, name, meta, size)
		if err != nil {
			return nil, err
		}
		return slowDisk{f.(*dirFile), 2 * resumeBlock, run}, nil
	}}
	path := t.TempDir()
	dir = must(OpenDir(t.Context(), path, DirOptions{KeepFor: time.Hour}))(t)
	t.Cleanup(func() { _ = dir.Close() })
	srv := serve(t, device(t, iwarp.Config{}), r, DirOptions{})
	dev := device(t, iwarp.Config{})
	_, err := (&Sender{}).Send(ctx, dev, srv.addr, chosenOf(data, 0))
	wantCode(t, err, CodeTimeout, true, "nothing has moved for 200ms while this side waited for the file")
	close(run)
	res, err := (&Sender{}).Send(ctx, dev, srv.addr, chosenOf(data, 0))
	if err != nil || res.Kept < 2*resumeBlock {
		t.Errorf("got %+v, %v", res, err)
	}
	if got, err := os.ReadFile(filepath.Join(path, "f")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file has %d bytes that differ: %v", len(got), err)
	}
}
