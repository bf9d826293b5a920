package shm

import (
	"encoding/binary"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestIOCBLayout compares the offsets with those of struct iocb of aio_abi.h.
func TestIOCBLayout(t *testing.T) {
	layout := reflect.TypeFor[iocb]()
	if n := layout.Size(); n != 64 {
		t.Errorf("iocb has %d bytes", n)
	}
	for name, want := range map[string]uintptr{"key": 8, "opcode": 16, "prio": 18, "fd": 20, "buf": 24, "bytes": 32, "offset": 40, "flags": 56, "resFD": 60} {
		if f, ok := layout.FieldByName(name); !ok || f.Offset != want {
			t.Errorf("%s is at %d, want %d", name, f.Offset, want)
		}
	}
}

// kinds calls f with Doorbells that use asynchronous operations, and ones that write on a goroutine.
func kinds(t *testing.T, f func(t *testing.T, open func(t *testing.T, flags int) *Doorbell)) {
	for name, plain := range map[string]bool{"asynchronous": false, "goroutine": true} {
		t.Run(name, func(t *testing.T) {
			if !plain && operations() == nil {
				t.Skip("this kernel has no asynchronous operations")
			}
			f(t, func(t *testing.T, flags int) *Doorbell {
				fd, err := unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				b := NewDoorbell(fd)
				if plain {
					b.cb = iocb{}
				}
				return b
			})
		})
	}
}

// count waits until the count of a Doorbell is want.
func count(t *testing.T, b *Doorbell, want uint64) {
	t.Helper()
	var sum uint64
	fds := []unix.PollFd{{Fd: int32(b.FD()), Events: unix.POLLIN}}
	for sum < want {
		if n, err := unix.Poll(fds, 10_000); n != 1 || err != nil && err != unix.EINTR {
			t.Fatalf("the count is %d, want %d: %v", sum, want, err)
		}
		var v [8]byte
		if _, err := unix.Read(b.FD(), v[:]); err != nil {
			t.Fatal(err)
		}
		sum += binary.NativeEndian.Uint64(v[:])
	}
	if sum != want {
		t.Errorf("the count is %d, want %d", sum, want)
	}
}

func TestDoorbell(t *testing.T) {
	kinds(t, func(t *testing.T, open func(*testing.T, int) *Doorbell) {
		b := open(t, unix.EFD_NONBLOCK)
		for range 3 {
			b.Ring(5)
		}
		count(t, b, 15)
		var wg sync.WaitGroup
		for range 4 { // more operations than are reaped at once, of several Doorbells
			wg.Go(func() {
				b := open(t, unix.EFD_NONBLOCK)
				for range 2 * maxOperations {
					b.Ring(1)
				}
				count(t, b, 2*maxOperations)
				b.Close()
			})
		}
		wg.Wait()
		b.Close()
	})
}

// TestDoorbellIsNotHeldUp rings an eventfd that blocks and whose count is full, as a peer can arrange after the flags were
// checked. A plain write would wait for ever.
func TestDoorbellIsNotHeldUp(t *testing.T) {
	kinds(t, func(t *testing.T, open func(*testing.T, int) *Doorbell) {
		b := open(t, 0)
		if _, err := unix.Write(b.FD(), binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1)); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			b.Ring(1)
			b.Ring(1)
			b.Close()
			close(done)
		}()
		limit := time.NewTimer(30 * time.Second)
		defer limit.Stop()
		select {
		case <-done:
		case <-limit.C:
			t.Error("Ring waits")
		}
		if b.cb.flags == 0 {
			gone := func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return !b.writing
			}
			for tick := time.NewTicker(time.Millisecond); !gone(); {
				select {
				case <-tick.C:
				case <-limit.C:
					t.Fatal("the goroutine of a closed Doorbell does not end")
				}
			}
		}
	})
}

// TestContextIsSmall bounds the part of fs.aio-max-nr that a process takes, because all processes of the machine share it: a
// thousand of them fit into its default of 65,536.
func TestContextIsSmall(t *testing.T) {
	if maxOperations*1000 > 1<<16 {
		t.Errorf("each process takes %d asynchronous operations of the machine", maxOperations)
	}
}

// TestDoorbellOfRefusedOperation rings where the kernel refuses each operation, because a program has closed the descriptor that
// the operations write to. A lost token would leave the other process asleep.
func TestDoorbellOfRefusedOperation(t *testing.T) {
	kinds(t, func(t *testing.T, open func(*testing.T, int) *Doorbell) {
		b := open(t, unix.EFD_NONBLOCK)
		if b.cb.flags == 0 {
			t.Skip("goroutines write without operations")
		}
		b.cb.fd = math.MaxInt32
		b.Ring(3)
		count(t, b, 3)
		b.Close()
	})
}

func BenchmarkDoorbell(b *testing.B) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	doorbell := NewDoorbell(fd)
	defer doorbell.Close()
	b.ReportAllocs()
	for b.Loop() {
		doorbell.Ring(1)
	}
}
