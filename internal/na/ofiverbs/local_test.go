package ofiverbs

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// openMemory opens a device without a network. As on InfiniBand and RoCE, the sink of a read needs no right for the peer there.
func openMemory(t testing.TB) *verbs.Device {
	t.Helper()
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	return dev
}

// exchange writes local to remote memory and reads it back into local, and checks the bytes.
func exchange(t *testing.T, user *Endpoint, to na.Addr, r na.RemoteMemory, mem, local []byte) {
	t.Helper()
	copy(local, noise(len(local)))
	want := bytes.Clone(local)
	c := newCall()
	user.Put(&c.op, to, []na.Fragment{{Remote: r, Local: local}})
	if err := c.wait(t, user, to); err != nil || !bytes.Equal(mem[:len(local)], want) {
		t.Fatalf("put of %d bytes: %v", len(local), err)
	}
	clear(local)
	c = newCall()
	user.Get(&c.op, to, []na.Fragment{{Remote: r, Local: local}})
	if err := c.wait(t, user, to); err != nil || !bytes.Equal(local, want) {
		t.Fatalf("get of %d bytes: %v", len(local), err)
	}
}

// memoryPair opens two endpoints on dev. One exposes size bytes, mem; the other, user, can reach them as r at the address to.
func memoryPair(t *testing.T, dev *verbs.Device, cfg Config, size int) (user *Endpoint, to na.Addr, r na.RemoteMemory, mem []byte) {
	t.Helper()
	cfg.Device = dev
	owner, user := openServer(t, Config{Device: dev}), openEndpoint(t, cfg)
	mem = make([]byte, size)
	_, r = lend(t, owner, user, mem, na.ReadWrite)
	return user, lookup(t, user, owner), r, mem
}

// cachedBytes returns the number of bytes, and of regions, in the cache.
func (l *locals) cachedBytes() (int64, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cached, l.recent.Len()
}

// has reports whether the cache has a region for a key.
func (l *locals) has(key cacheKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cache[key] != nil
}

// TestCache checks that a slice is registered once for many transfers, with one region for reads and one for writes, and that the least
// recently used regions leave the cache first.
// parity: N04
func TestCache(t *testing.T) {
	const size = 1 << 20
	user, to, r, mem := memoryPair(t, openMemory(t), Config{RegCacheBytes: 4 * size}, size)
	user.locals.bounce.most = 0
	first, second := make([]byte, size), make([]byte, size)
	for range 3 {
		exchange(t, user, to, r, mem, first)
		if n, regions := user.locals.cachedBytes(); n != 2*size || regions != 2 {
			t.Fatalf("%d bytes in %d regions are cached, want 2 regions, of which one can be written", n, regions)
		}
	}
	before := user.registered.Load()
	exchange(t, user, to, r, mem, second)
	exchange(t, user, to, r, mem, first) // the second is now the least recently used
	exchange(t, user, to, r, mem, make([]byte, size))
	if n, regions := user.locals.cachedBytes(); n != 4*size || regions != 4 || user.registered.Load() != before+2 {
		t.Errorf("%d bytes in %d regions are cached, and %d are registered, want 4 MiB in 4", n, regions, user.registered.Load())
	}
	if !user.locals.has(cacheKey{hostmem.Addr(first), size, 0}) || user.locals.has(cacheKey{hostmem.Addr(second), size, 0}) {
		t.Error("the region that was used most recently is gone, or the least recently used one is there")
	}
	if rdma, copied := user.Moved(); copied != 0 || rdma != 2*(3+1+1+1)*size {
		t.Errorf("%d bytes went by RDMA and %d were copied, want none copied", rdma, copied)
	}
}

// TestCacheLimit checks that the cache never holds more bytes than its limit, and no region at all if the limit is negative.
// parity: N04
func TestCacheLimit(t *testing.T) {
	const size = 64 << 10
	for _, limit := range []int64{-1, size - 1, size} {
		user, to, r, mem := memoryPair(t, openMemory(t), Config{RegCacheBytes: limit}, size)
		user.locals.bounce.most = 0
		exchange(t, user, to, r, mem, make([]byte, size))
		exchange(t, user, to, r, mem, make([]byte, size))
		if n, regions := user.locals.cachedBytes(); n > max(limit, 0) || limit < size && regions != 0 || user.registered.Load() != int64(regions) {
			t.Errorf("limit %d: %d bytes in %d regions are cached, %d registered", limit, n, regions, user.registered.Load())
		}
	}
}

// TestCacheInUse checks that a region in use does not leave the cache. While the only place is taken, other memory gets a region of its own.
// parity: N04
func TestCacheInUse(t *testing.T) {
	user := openEndpoint(t, Config{Device: openMemory(t), RegCacheBytes: 100})
	l := &user.locals
	l.bounce.most = 0
	a, b := make([]byte, 100), make([]byte, 100)
	first, _, err := l.acquire(a, true)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := l.acquire(a, true)
	if err != nil || again.mr != first.mr {
		t.Fatalf("%v, want the same region", err)
	}
	other, unused, err := l.acquire(b, true)
	if err != nil || !other.own || len(unused) != 0 {
		t.Fatalf("%+v, %d given up, %v; want a region of its own", other, len(unused), err)
	}
	other.release()
	first.release()
	again.release()
	other, unused, err = l.acquire(b, true)
	if err != nil || other.own || len(unused) != 1 || unused[0].mr != first.mr {
		t.Fatalf("%+v, %d given up, %v; want the region in the cache, for the first", other, len(unused), err)
	}
	unused[0].release()
	other.release()
}

// TestCacheUnderCollector runs the collector while the cache has a slice to which the program has no reference any more. The collector frees the
// slice only after the cache has given it up.
// parity: N04
func TestCacheUnderCollector(t *testing.T) {
	const size = 1 << 20
	user, to, r, mem := memoryPair(t, openMemory(t), Config{}, size)
	user.locals.bounce.most = 0
	var collected atomic.Bool
	func() {
		slice := make([]byte, size)
		runtime.AddCleanup(&slice[0], func(c *atomic.Bool) { c.Store(true) }, &collected)
		exchange(t, user, to, r, mem, slice)
	}()
	for range 3 {
		runtime.GC()
	}
	if collected.Load() {
		t.Fatal("a slice was collected while the device has its address")
	}
	if !user.locals.giveUp() {
		t.Fatal("the slice is not cached")
	}
	own, free, err := user.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, user, to, r, mem, own) // the device in memory refers to the memory of its last request
	eventually(t, "collection of the slice", func() bool {
		runtime.GC()
		return collected.Load()
	})
	if err := free(); err != nil {
		t.Error(err)
	}
}

// TestOwnMemory checks that memory of Alloc is registered once, and mapped memory of the program for each transfer.
// parity: N03
func TestOwnMemory(t *testing.T) {
	const size = 1 << 20
	user, to, r, mem := memoryPair(t, openMemory(t), Config{}, size)
	var frees []func() error
	for range 3 {
		own, free, err := user.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		frees = append(frees, free)
		before := user.registered.Load()
		exchange(t, user, to, r, mem, own)
		exchange(t, user, to, r, mem, own[size/2:])
		if l, _, err := user.locals.acquire(own[size-1:], false); err != nil || l.own || l.off != size-1 {
			t.Errorf("%+v, %v; want the region of the memory", l, err)
		}
		if n, _ := user.locals.cachedBytes(); n != 0 || user.registered.Load() != before {
			t.Errorf("%d bytes are cached, and %d regions were registered for memory that is registered", n, user.registered.Load()-before)
		}
	}
	if err := errors.Join(frees[1](), frees[0]()); err != nil {
		t.Error(err)
	}
	if n := user.registered.Load(); n != 1 {
		t.Errorf("%d regions are registered, want that of the memory which is left", n)
	}
	closeEndpoint(t, user)
	if err := frees[2](); err != nil {
		t.Errorf("free after Close: %v", err)
	}
	if _, _, err := user.Alloc(1); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("memory of a closed endpoint: %v", err)
	}
}

// TestBounce checks that small pieces are copied through the bounce buffer and counted, and that they are registered when no slot is free.
func TestBounce(t *testing.T) {
	const most = 1000
	user, to, r, mem := memoryPair(t, openMemory(t), Config{}, 1<<20)
	user.locals.bounce.most = most
	exchange(t, user, to, r, mem, make([]byte, most))
	if rdma, copied := user.Moved(); rdma != 2*most || copied != 2*most {
		t.Errorf("%d bytes went by RDMA and %d were copied, want all copied", rdma, copied)
	}
	exchange(t, user, to, r, mem, make([]byte, most+1))
	if _, copied := user.Moved(); copied != 2*most {
		t.Errorf("%d bytes were copied, want none of longer pieces", copied)
	}
	var held []*local
	for range bounceSlots {
		l, _, err := user.locals.acquire(make([]byte, most), false)
		if err != nil || l.slot == 0 {
			t.Fatalf("%+v, %v; want a slot", l, err)
		}
		held = append(held, l)
	}
	exchange(t, user, to, r, mem, make([]byte, most))
	for _, l := range held {
		l.release()
	}
}

// scarceDevice is a device that has room for a limited number of bytes of registered memory, and of regions.
type scarceDevice struct {
	verbs.DeviceDriver
	room    atomic.Int64 // bytes that are left
	regions atomic.Int64
	maxMR   int64 // limit of regions; 0: that of the device
}

func (d *scarceDevice) Query() (verbs.DeviceAttr, error) {
	attr, err := d.DeviceDriver.Query()
	if d.maxMR > 0 {
		attr.MaxMR = int(d.maxMR)
	}
	return attr, err
}

func (d *scarceDevice) AllocPD() (verbs.PDDriver, error) {
	pd, err := d.DeviceDriver.AllocPD()
	return &scarcePD{pd, d}, err
}

type scarcePD struct {
	verbs.PDDriver
	dev *scarceDevice
}

func (p *scarcePD) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	n := int64(len(r.Bytes))
	if p.dev.room.Add(-n) < 0 {
		p.dev.room.Add(n)
		return nil, verbs.Errorf("register memory", verbs.ErrLockLimit, "%d bytes", n)
	}
	if p.dev.regions.Add(1) > p.dev.maxMR && p.dev.maxMR > 0 {
		p.dev.regions.Add(-1)
		p.dev.room.Add(n)
		return nil, &verbs.Error{Op: "register memory", Err: syscall.ENOMEM}
	}
	mr, err := p.PDDriver.RegMR(r, access)
	return &scarceMR{mr, p.dev, n}, err
}

type scarceMR struct {
	verbs.MRDriver
	dev *scarceDevice
	n   int64
}

func (m *scarceMR) Close() error {
	defer m.dev.room.Add(m.n)
	defer m.dev.regions.Add(-1)
	return m.MRDriver.Close()
}

// TestCacheMakesRoom has a cache that holds all the memory which the device can still register. It gives that up for whatever needs it.
// parity: N04
func TestCacheMakesRoom(t *testing.T) {
	const size = 1 << 20
	for name, need := range map[string]func(t *testing.T, user *Endpoint, to na.Addr, r na.RemoteMemory, mem []byte) error{
		"exposed memory": func(_ *testing.T, user *Endpoint, _ na.Addr, _ na.RemoteMemory, _ []byte) error {
			m, err := user.Register(make([]byte, size), na.ReadOnly)
			if err == nil {
				m.Close()
			}
			return err
		},
		"own memory": func(_ *testing.T, user *Endpoint, _ na.Addr, _ na.RemoteMemory, _ []byte) error {
			_, free, err := user.Alloc(size)
			if err != nil {
				return err
			}
			return free()
		},
		"another slice": func(t *testing.T, user *Endpoint, to na.Addr, r na.RemoteMemory, mem []byte) error {
			exchange(t, user, to, r, mem, make([]byte, size/2))
			return nil
		},
		"a small piece": func(t *testing.T, user *Endpoint, to na.Addr, r na.RemoteMemory, mem []byte) error {
			user.locals.bounce.most = 100
			exchange(t, user, to, r, mem, make([]byte, 100))
			return nil
		},
		"a connection": func(t *testing.T, user *Endpoint, _ na.Addr, _ na.RemoteMemory, _ []byte) error {
			c := newCall()
			user.SendRequest(&c.op, user.Addr(), 1, request(user, nil))
			return c.park(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			scarce := &scarceDevice{DeviceDriver: memdev.Open(memdev.Config{})}
			scarce.room.Store(1 << 30)
			dev := verbs.NewDevice(scarce)
			t.Cleanup(func() {
				if err := dev.Close(); err != nil {
					t.Errorf("close the device: %v", err)
				}
			})
			user, to, r, mem := memoryPair(t, dev, Config{}, size)
			user.locals.bounce.most = 0
			exchange(t, user, to, r, mem, make([]byte, size))
			scarce.room.Store(0)
			if err := need(t, user, to, r, mem); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBounceOfCutPieces moves small pieces over a device whose reads and writes are smaller still.
func TestBounceOfCutPieces(t *testing.T) {
	user, to, r, mem := memoryPair(t, openMemory(t), Config{}, 1<<20)
	user.locals.bounce.most = 1000
	user.shape.chunk = 300
	exchange(t, user, to, r, mem, make([]byte, 1000))
	exchange(t, user, to, r, mem, make([]byte, 300))
	if _, copied := user.Moved(); copied != 600 {
		t.Errorf("%d bytes were copied, want the piece that is not cut", copied)
	}
}

// sinkDevice is a device of a transport whose reads need rights at their sink. It records the rights of all registrations of size bytes.
type sinkDevice struct {
	verbs.DeviceDriver
	transport verbs.TransportType
	sink      verbs.Access
	size      int

	mu      sync.Mutex
	granted []verbs.Access // +checklocks:mu
}

func (d *sinkDevice) Query() (verbs.DeviceAttr, error) {
	attr, err := d.DeviceDriver.Query()
	attr.Transport, attr.ReadSink = d.transport, d.sink
	return attr, err
}

func (d *sinkDevice) AllocPD() (verbs.PDDriver, error) {
	pd, err := d.DeviceDriver.AllocPD()
	return &sinkPD{pd, d}, err
}

type sinkPD struct {
	verbs.PDDriver
	dev *sinkDevice
}

func (p *sinkPD) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	if len(r.Bytes) == p.dev.size {
		p.dev.mu.Lock()
		p.dev.granted = append(p.dev.granted, access)
		p.dev.mu.Unlock()
	}
	return p.PDDriver.RegMR(r, access)
}

// take returns the rights of the registrations since the last call.
func (d *sinkDevice) take() (granted []verbs.Access) {
	d.mu.Lock()
	defer d.mu.Unlock()
	granted, d.granted = d.granted, nil
	return granted
}

// TestSinkRights checks the rights by which the local memory of a put and of a get is registered. The sink has the rights that the device names,
// on each transport.
func TestSinkRights(t *testing.T) {
	const size = 1 << 20
	software, err := openDevice(t).Query()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		transport  verbs.TransportType
		sink, want verbs.Access
	}{
		"InfiniBand":      {verbs.TransportIB, verbs.LocalWrite, verbs.LocalWrite},
		"unset":           {verbs.TransportIB, 0, verbs.LocalWrite},
		"iWARP card":      {verbs.TransportIWARP, verbs.LocalWrite | verbs.RemoteWrite, verbs.LocalWrite | verbs.RemoteWrite},
		"software device": {software.Transport, software.ReadSink, verbs.LocalWrite},
	} {
		t.Run(name, func(t *testing.T) {
			d := &sinkDevice{DeviceDriver: memdev.Open(memdev.Config{}), transport: test.transport, sink: test.sink, size: size}
			dev := verbs.NewDevice(d)
			t.Cleanup(func() {
				if err := dev.Close(); err != nil {
					t.Errorf("close the device: %v", err)
				}
			})
			user, to, r, mem := memoryPair(t, dev, Config{}, size)
			user.locals.bounce.most = 0
			d.take()
			exchange(t, user, to, r, mem, make([]byte, size))
			if got, want := d.take(), []verbs.Access{0, test.want}; !slices.Equal(got, want) {
				t.Errorf("memory of a put and of a get is registered with %v, want %v", got, want)
			}
		})
	}
}

// TestSinkOfSoftwareDevice checks that no peer gets a right to the sink of a read on the software device: the sink of a get is memory of Alloc, or
// of the cache, as on InfiniBand.
func TestSinkOfSoftwareDevice(t *testing.T) {
	const size = 1 << 20
	user, to, r, mem := memoryPair(t, openDevice(t), Config{}, size)
	user.locals.bounce.most = 0
	own, free, err := user.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, user, to, r, mem, own)
	if n, _ := user.locals.cachedBytes(); n != 0 {
		t.Errorf("%d bytes are cached for memory of Alloc", n)
	}
	slice := make([]byte, size)
	exchange(t, user, to, r, mem, slice)
	if key := (cacheKey{hostmem.Addr(slice), size, verbs.LocalWrite}); !user.locals.has(key) {
		t.Error("the cache has no registration of the sink with LocalWrite only")
	}
	if err := free(); err != nil {
		t.Error(err)
	}
}

// TestGetGuessesRight checks that no guess at the places of a read response is wrong, when endpoints on two software devices get data over new connections.
func TestGetGuessesRight(t *testing.T) {
	const size = 8 << 20
	for range 10 {
		dev := openDevice(t)
		owner, user := openServer(t, Config{Device: openDevice(t)}), openEndpoint(t, Config{Device: dev})
		mem, local := noise(size), make([]byte, size)
		_, r := lend(t, owner, user, mem, na.ReadOnly)
		to := lookup(t, user, owner)
		for _, n := range []int{1 << 20, 1 << 20, size, 1<<20 + 12345} {
			clear(local)
			c := newCall()
			user.Get(&c.op, to, []na.Fragment{{Remote: r, Local: local[:n]}})
			if err := c.wait(t, user, to); err != nil || !bytes.Equal(local[:n], mem[:n]) {
				t.Fatalf("get of %d bytes: %v", n, err)
			}
		}
		s := dev.Stats()
		if s["rx_wrong_guesses"] != 0 || s["rx_staged_bytes"] != 0 {
			t.Errorf("%d guesses were wrong, %d bytes were copied", s["rx_wrong_guesses"], s["rx_staged_bytes"])
		}
		// Without guesses an FPDU takes two calls, one for its header and one for its data. A call gets only a part of an FPDU whose rest has not come yet.
		if s["rx_calls"] >= 2*s["rx_fpdus"] {
			t.Errorf("%d FPDUs were read by %d system calls", s["rx_fpdus"], s["rx_calls"])
		}
	}
}

// TestSinkOfIWARP checks that the sink of a read on an iWARP card is registered for its transfer alone, because peers have the right to write to it.
func TestSinkOfIWARP(t *testing.T) {
	const size = 100
	d := &sinkDevice{DeviceDriver: memdev.Open(memdev.Config{}), transport: verbs.TransportIWARP, sink: verbs.LocalWrite | verbs.RemoteWrite}
	dev := verbs.NewDevice(d)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	user, to, r, mem := memoryPair(t, dev, Config{}, size)
	user.locals.bounce.most = size
	own, free, err := user.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	for _, buf := range [][]byte{make([]byte, size), own} {
		l, _, err := user.locals.acquire(buf, false)
		if err != nil || !l.own {
			t.Errorf("%+v, %v; want a region of this transfer", l, err)
		}
		l.release()
		exchange(t, user, to, r, mem, buf)
	}
	if n, _ := user.locals.cachedBytes(); n != 0 {
		t.Errorf("%d bytes are cached", n)
	}
	if err := free(); err != nil {
		t.Error(err)
	}
}

// TestFewRegions opens an endpoint on a device with room for a few memory regions. The error of a registration beyond them names the limit and the remedy.
// Cached slices give way to exposed memory, and closed memory makes room.
// parity: N03 N05
func TestFewRegions(t *testing.T) {
	const limit = 16
	scarce := &scarceDevice{DeviceDriver: memdev.Open(memdev.Config{}), maxMR: limit}
	scarce.room.Store(1 << 30)
	dev := verbs.NewDevice(scarce)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	const size = 64 << 10
	user, to, r, mem := memoryPair(t, dev, Config{}, size)
	user.locals.bounce.most = 0
	for range 2 {
		exchange(t, user, to, r, mem, make([]byte, size))
	}
	if _, n := user.locals.cachedBytes(); n != 4 {
		t.Fatalf("%d regions are cached, want those of two slices as source and as sink", n)
	}
	var list []na.Memory
	var err error
	for err == nil && len(list) <= limit {
		var m na.Memory
		if m, err = user.Register(make([]byte, 10), na.ReadOnly); err == nil {
			list = append(list, m)
		}
	}
	if n, _ := user.locals.cachedBytes(); n != 0 {
		t.Errorf("%d bytes are cached, but exposed memory finds no room", n)
	}
	if err == nil || !errors.Is(err, errRegions) || !strings.Contains(err.Error(), fmt.Sprintf("room for %d (DeviceAttr.MaxMR)", limit)) || !strings.Contains(err.Error(), "fewer segments") {
		t.Errorf("after %d regions of %d: %v", len(list), limit, err)
	}
	list[0].Close()
	m, err := user.Register(make([]byte, 10), na.ReadOnly)
	if err != nil {
		t.Fatalf("after memory was closed: %v", err)
	}
	for _, m := range append(list[1:], m) {
		m.Close()
	}
}

// TestNoRoomForRegions checks that the error names the device's limit when the device has no room for another region.
func TestNoRoomForRegions(t *testing.T) {
	e := openEndpoint(t, Config{})
	e.attr.MaxMR = 4
	device := errors.New("cannot allocate memory")
	if err := e.explain(device); !errors.Is(err, device) || errors.Is(err, errRegions) {
		t.Errorf("with room: %v", err)
	}
	for range 3 {
		lend(t, e, e, make([]byte, 10), na.ReadOnly)
	}
	err := e.explain(device)
	for _, part := range []string{"this endpoint has 3", "room for 4", "DeviceAttr.MaxMR", "fewer segments", device.Error()} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	if !errors.Is(err, errRegions) || !errors.Is(err, device) {
		t.Errorf("%v does not match its causes", err)
	}
}
