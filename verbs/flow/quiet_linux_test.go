package flow

import (
	"bytes"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
)

// residentBytes returns the number of bytes of the regions of a connection that are in memory, in whole pages.
func residentBytes(t *testing.T, c *Conn) int {
	t.Helper()
	page := os.Getpagesize()
	n := 0
	c.stagingMu.Lock()
	defer c.stagingMu.Unlock()
	for _, mr := range []*verbs.MR{c.ringMR, c.recvMR, c.sendMR, c.stageMR} {
		if mr == nil {
			continue
		}
		sge := mr.SGE(0, mr.Len())
		low := sge.Addr &^ uint64(page-1)
		in := make([]byte, (sge.Addr+uint64(mr.Len())-low+uint64(page)-1)/uint64(page))
		if _, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(low), uintptr(len(in)*page), uintptr(hostmem.Addr(in))); errno != 0 {
			t.Fatal(errno)
		}
		for _, b := range in {
			n += int(b&1) * page
		}
	}
	return n
}

// exchangeLong sends long records in one direction and compares them.
func exchangeLong(t *testing.T, from, to *Conn, records int) {
	t.Helper()
	ctx := devicetest.Context(t)
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < records && err == nil; i++ {
			err = from.Send(ctx, fill(make([]byte, 64<<10), i))
		}
		sent <- err
	}()
	for i := range records {
		r := recv(t, to)
		if !bytes.Equal(r.Bytes(), fill(make([]byte, 64<<10), i)) {
			t.Errorf("record %d is not what was sent", i)
		}
		must(t, r.Release())
	}
	must(t, <-sent)
}

// waitUntil waits for a state that nothing announces.
func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestQuietConnectionGivesMemoryBack sends 4 MiB in each direction. Afterwards each end takes 64 KiB at most, and the connection
// carries as much again.
func TestQuietConnectionGivesMemoryBack(t *testing.T) {
	const most, records = 64 << 10, 64
	a, p := pair(t, Config{}, Config{})
	for range 2 {
		exchangeLong(t, a, p, records)
		exchangeLong(t, p, a, records)
		for _, c := range []*Conn{a, p} {
			waitUntil(t, "a quiet connection keeps its memory", func() bool { return residentBytes(t, c) <= most && !hasSpareRecords(c) })
		}
	}
}

// hasSpareRecords reports whether c keeps memory of earlier records.
func hasSpareRecords(c *Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tx.spare) > 0 || len(c.rx.queue) > 0
}

// TestHeldRecordKeepsMemory gives no memory back while the program has a record, and does when the record is released.
func TestHeldRecordKeepsMemory(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	exchangeLong(t, a, p, 16)
	ctx := devicetest.Context(t)
	want := fill(make([]byte, 64<<10), 1)
	must(t, a.Send(ctx, want))
	r := recv(t, p)
	p.giveMemory() // as the timer calls it
	p.giveMemory()
	if !bytes.Equal(r.Bytes(), want) {
		t.Error("the record has changed")
	}
	must(t, r.Release())
	waitUntil(t, "the connection keeps its memory", func() bool { return residentBytes(t, p) <= 64<<10 })
	runtime.KeepAlive(r)
}

// TestUnannouncedWriteKeepsMemory writes to the peer's ring without a record: the peer, which does not know whether a record follows,
// gives no memory back.
func TestUnannouncedWriteKeepsMemory(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	exchangeLong(t, a, p, 16)
	mr, err := a.PD().AllocMR(8, 0)
	must(t, err)
	copy(mr.Bytes(), "the byte")
	ctx := devicetest.Context(t)
	to := a.remote
	to.Addr += uint64(p.ringMR.Len() - 8)
	must(t, a.Do(ctx, verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: to},
		verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{a.Discard()}, Remote: to})) // the answer comes behind the write
	p.giveMemory()
	p.giveMemory()
	if got := p.ringMR.Bytes()[p.ringMR.Len()-8:]; string(got) != "the byte" {
		t.Errorf("the peer's ring has %q", got)
	}
	must(t, mr.Close())
}
