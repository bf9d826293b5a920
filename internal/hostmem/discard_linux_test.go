package hostmem

import (
	"bytes"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDiscardGivesWholePagesBack discards a slice that begins and ends within pages: those two keep their bytes.
func TestDiscardGivesWholePagesBack(t *testing.T) {
	page := os.Getpagesize()
	all, err := unix.Mmap(-1, 0, 6*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(all); err != nil {
			t.Error(err)
		}
	}()
	copy(all, bytes.Repeat([]byte{7}, len(all)))
	if !Discard(all[page/2 : 5*page+1]) {
		t.Fatal("nothing was given back")
	}
	resident := make([]byte, 6)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(Addr(all)), uintptr(len(all)), uintptr(Addr(resident))); errno != 0 {
		t.Fatal(errno)
	}
	runtime.KeepAlive(&resident)
	for i, in := range resident {
		if want := i == 0 || i == 5; in&1 == 1 != want || all[i*page] != map[bool]byte{true: 7}[want] {
			t.Errorf("page %d: resident %v, first byte %d", i, in&1 == 1, all[i*page])
		}
	}
	for _, b := range [][]byte{nil, all[1:page], all[1 : 2*page-1]} {
		if Discard(b) {
			t.Errorf("%d bytes without a whole page were given back", len(b))
		}
	}
}
