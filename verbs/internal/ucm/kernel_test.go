//go:build linux

package ucm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Types of events that the tests wait for, besides those of channel.go.
const (
	eventRouteResolved   = 2
	eventConnectResponse = 5
	eventRejected        = 8
	eventEstablished     = 9
	eventDisconnected    = 10
)

// patience bounds every wait. It is reached only by what hangs.
const patience = 30 * time.Second

// rig is a channel with a reader of its own for each test.
type rig struct {
	*testing.T
	ch *Channel
}

// newRig opens the connection manager, and skips where there is none.
func newRig(t *testing.T) *rig {
	t.Helper()
	ch, err := OpenChannel()
	if err != nil {
		t.Skipf("no connection manager of the kernel: %v", err)
	}
	if err := unix.SetNonblock(ch.FD(), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ch.Close(); err != nil {
			t.Error(err)
		}
		if err := ch.Close(); !errors.Is(err, syscall.EBADF) {
			t.Errorf("the second Close: %v", err)
		}
	})
	return &rig{t, ch}
}

// ok fails the test on an error.
func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// create makes an identifier. The cleanup of the test destroys the identifier, unless the test has done so.
func (r *rig) create(ctx uint64) *ID {
	r.Helper()
	id, err := r.ch.Create(ctx)
	r.ok(err)
	r.Cleanup(func() { _ = id.Destroy() })
	return id
}

// next waits for an event.
func (r *rig) next() Event {
	r.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		ev, err := r.ch.Next()
		if err == nil {
			return ev
		}
		if !errors.Is(err, syscall.EAGAIN) {
			r.Fatal(err)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.ch.FD()), Events: unix.POLLIN}}, 1000)
	}
	r.Fatal("no event")
	return Event{}
}

// want waits for an event and checks its type and context.
func (r *rig) want(typ uint32, ctx uint64) Event {
	r.Helper()
	ev := r.next()
	if ev.Type != typ || ev.Ctx != ctx {
		r.Fatalf("event %+v, want type %d of context %d", ev, typ, ctx)
	}
	return ev
}

// quiet checks that there is no event.
func (r *rig) quiet() {
	r.Helper()
	if ev, err := r.ch.Next(); !errors.Is(err, syscall.EAGAIN) {
		r.Fatalf("event %+v, %v", ev, err)
	}
}

// resolve resolves an address and the route to it.
func (r *rig) resolve(id *ID, ctx uint64, from, to netip.AddrPort) {
	r.Helper()
	r.ok(id.ResolveAddr(from, to, 2000))
	r.want(eventAddrResolved, ctx)
	r.ok(id.ResolveRoute(2000))
	r.want(eventRouteResolved, ctx)
}

// place is an address of an RDMA device.
type place struct {
	addr   netip.Addr
	device string
}

// places returns the addresses of devices whose name begins so; it skips without one.
func (r *rig) places(driver string) []place {
	r.Helper()
	addrs, err := net.InterfaceAddrs()
	r.ok(err)
	var all []place
	for _, a := range addrs {
		n, isNet := a.(*net.IPNet)
		ip, valid := netip.AddrFromSlice(n.IP)
		if !isNet || !valid || n.IP.IsLoopback() || n.IP.IsLinkLocalUnicast() {
			continue
		}
		id := r.create(0)
		if id.Bind(netip.AddrPortFrom(ip.Unmap(), 0)) == nil && strings.HasPrefix(id.Device(), driver) {
			all = append(all, place{ip.Unmap(), id.Device()})
		}
		r.ok(id.Destroy())
	}
	if len(all) == 0 {
		r.Skipf("no address belongs to an RDMA device %s*", driver)
	}
	return all
}

func (p place) port(n uint16) netip.AddrPort { return netip.AddrPortFrom(p.addr, n) }

// each runs a test for each address of devices whose name begins so.
func each(t *testing.T, driver string, test func(r *rig, p place)) {
	for _, p := range newRig(t).places(driver) {
		t.Run(p.device+"/"+p.addr.String(), func(t *testing.T) { test(newRig(t), p) })
	}
}

func TestBind(t *testing.T) {
	each(t, "", func(r *rig, p place) {
		id := r.create(1)
		if local, remote := id.Addrs(); local.IsValid() || remote.IsValid() || id.Device() != "" {
			r.Errorf("a new identifier: %v, %v, device %q", local, remote, id.Device())
		}
		r.ok(id.Bind(p.port(0)))
		local, remote := id.Addrs()
		if local.Addr() != p.addr || local.Port() == 0 || remote.Port() != 0 || !remote.Addr().IsUnspecified() {
			r.Errorf("bound to %v: %v, %v", p.addr, local, remote)
		}
		r.ok(id.Listen(5))
		resp := make([]byte, queryRespSize)
		r.ok(id.ask(queryRequest(id.handle), resp))
		q := parseQuery(resp)
		if name := nameByGUID(classDir, q.guid); name != id.Device() {
			r.Errorf("device %q by its index %d, %q by its GUID", id.Device(), q.index, name)
		}
		second := r.create(2)
		if err := second.Bind(local); !errors.Is(err, syscall.EADDRINUSE) {
			r.Errorf("the second identifier on an address: %v", err)
		}
		r.ok(id.Destroy())
		r.ok(second.Bind(local))
		r.ok(second.Destroy())
		if err := second.Destroy(); !errors.Is(err, syscall.ENOENT) {
			r.Errorf("the second Destroy: %v", err)
		}
		if err := second.Listen(1); !errors.Is(err, syscall.ENOENT) {
			r.Errorf("Listen after Destroy: %v", err)
		}
		r.quiet()
	})
}

func TestBindNowhere(t *testing.T) {
	r := newRig(t)
	r.places("")
	for _, addr := range []string{"192.0.2.1", "2001:db8::1"} {
		if err := r.create(1).Bind(netip.AddrPortFrom(netip.MustParseAddr(addr), 7174)); !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENODEV) {
			r.Errorf("%s: %v", addr, err)
		}
	}
	if err := r.create(1).Bind(netip.AddrPort{}); !errors.Is(err, syscall.EINVAL) {
		r.Errorf("no address: %v", err)
	}
	for _, addr := range []string{"0.0.0.0:0", "[::]:0"} {
		id := r.create(1)
		r.ok(id.Bind(netip.MustParseAddrPort(addr)))
		r.ok(id.Listen(0))
		if local, _ := id.Addrs(); local.Port() == 0 || id.Device() != "" {
			r.Errorf("%s: %v, device %q", addr, local, id.Device())
		}
	}
}

func TestOptions(t *testing.T) {
	each(t, "rxe", func(r *rig, p place) {
		id := r.create(1)
		r.ok(id.SetOption(OptionTypeOfService, 32))
		r.ok(id.SetOption(OptionAckTimeout, 14))
		r.ok(id.SetOption(OptionReuseAddr, 1))
		if err := id.SetOption(99, 1); !errors.Is(err, syscall.ENOSYS) {
			r.Errorf("an unknown option: %v", err)
		}
		r.ok(id.Bind(p.port(0)))
		local, _ := id.Addrs()
		second := r.create(2)
		r.ok(second.SetOption(OptionReuseAddr, 1))
		r.ok(second.Bind(local))
		only6 := r.create(3)
		r.ok(only6.SetOption(OptionOnlyIPv6, 1))
		r.ok(only6.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)))
		any6, _ := only6.Addrs()
		r.ok(r.create(4).Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), any6.Port())))
	})
}

func TestResolve(t *testing.T) {
	each(t, "", func(r *rig, p place) {
		for _, from := range []netip.AddrPort{{}, p.port(0)} {
			id := r.create(9)
			r.resolve(id, 9, from, p.port(7999))
			local, remote := id.Addrs()
			if local.Addr() != p.addr || local.Port() == 0 || remote != p.port(7999) || id.Device() != p.device {
				r.Errorf("from %v: %v, %v, device %q", from, local, remote, id.Device())
			}
			r.ok(id.Destroy())
		}
		if err := r.create(1).ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, 100); !errors.Is(err, syscall.EINVAL) {
			r.Errorf("no address: %v", err)
		}
		if err := r.create(1).ResolveRoute(100); !errors.Is(err, syscall.EINVAL) {
			r.Errorf("the route before the address: %v", err)
		}
		r.quiet()
	})
}

func TestResolveNobody(t *testing.T) {
	each(t, "", func(r *rig, p place) {
		id := r.create(9)
		nobody := p.addr.AsSlice()
		nobody[len(nobody)-1] = 99
		to, _ := netip.AddrFromSlice(nobody)
		r.ok(id.ResolveAddr(p.port(0), netip.AddrPortFrom(to, 7999), 500))
		if _, remote := id.Addrs(); remote.Addr() != to {
			r.Errorf("the remote address is %v", remote)
		}
		if ev := r.want(eventAddrError, 9); ev.Status >= 0 {
			r.Errorf("status %d", ev.Status)
		} else {
			r.Logf("nobody answers: %v", syscall.Errno(-ev.Status))
		}
	})
}

func TestLinkLocal(t *testing.T) {
	r := newRig(t)
	r.places("")
	ifcs, err := net.Interfaces()
	r.ok(err)
	bound := 0
	for _, ifc := range ifcs {
		addrs, err := ifc.Addrs()
		r.ok(err)
		for _, a := range addrs {
			n, isNet := a.(*net.IPNet)
			if !isNet || n.IP.To4() != nil || !n.IP.IsLinkLocalUnicast() {
				continue
			}
			ip, _ := netip.AddrFromSlice(n.IP)
			id := r.create(1)
			if err := id.Bind(netip.AddrPortFrom(ip.WithZone(ifc.Name), 0)); err != nil {
				r.Logf("%v%%%s: %v", ip, ifc.Name, err)
				continue
			}
			local, _ := id.Addrs()
			want := scope(ifc.Name)
			if id.Device() == "" || local.Addr().WithZone("") != ip || scope(local.Addr().Zone()) != want || local.Addr().Zone() == ifc.Name {
				r.Errorf("%v%%%s is %v of device %q", ip, ifc.Name, local, id.Device())
			}
			bound++
		}
	}
	if bound == 0 {
		r.Skip("no device has an IPv6 link-local address")
	}
}

func TestRefused(t *testing.T) {
	each(t, "rxe", func(r *rig, p place) {
		id := r.create(9)
		r.resolve(id, 9, netip.AddrPort{}, p.port(7998))
		r.ok(id.Connect(Param{QPN: 0x1234, Responder: 1, Depth: 1, Retry: 7, RNRRetry: 7}))
		if ev := r.want(eventRejected, 9); ev.Status != 8 { // no service of that number
			r.Errorf("status %d", ev.Status)
		}
		r.ok(id.Destroy())
		r.quiet()
	})
}

// listen makes a listener, and an identifier that has resolved its address.
func (r *rig) listen(p place, ctx uint64) (listener, dialer *ID) {
	r.Helper()
	listener = r.create(ctx)
	r.ok(listener.Bind(p.port(0)))
	r.ok(listener.Listen(5))
	at, _ := listener.Addrs()
	dialer = r.create(ctx + 1)
	r.resolve(dialer, ctx+1, netip.AddrPort{}, at)
	return listener, dialer
}

// request waits for a request to the listener ctx.
func (r *rig) request(p place, ctx uint64) (*ID, Param) {
	r.Helper()
	ev := r.want(eventConnectRequest, ctx)
	if ev.Child == nil {
		r.Fatal("the request has no identifier")
	}
	r.Cleanup(func() { _ = ev.Child.Destroy() })
	local, remote := ev.Child.Addrs()
	if local.Addr() != p.addr || remote.Addr() != p.addr || local.Port() == 0 || remote.Port() == 0 || ev.Child.Device() != p.device {
		r.Errorf("the request is of %v to %v on device %q", remote, local, ev.Child.Device())
	}
	return ev.Child, ev.Param
}

func TestReject(t *testing.T) {
	each(t, "rxe", func(r *rig, p place) {
		_, dialer := r.listen(p, 1)
		r.ok(dialer.Connect(Param{QPN: 0x1234, Responder: 1, Depth: 1, Retry: 7, RNRRetry: 7, Data: []byte("knock")}))
		child, _ := r.request(p, 1)
		if err := child.Reject(make([]byte, 255)); !errors.Is(err, syscall.EINVAL) {
			r.Errorf("too much private data: %v", err)
		}
		r.ok(child.Reject([]byte("go away")))
		r.ok(child.Destroy())
		ev := r.want(eventRejected, 2)
		if ev.Status != 28 || !bytes.HasPrefix(ev.Param.Data, []byte("go away")) {
			r.Errorf("status %d, private data %q", ev.Status, ev.Param.Data)
		}
	})
}

// TestDestroyRequest refuses a request by the end of its identifier, and another by the end of the listener.
func TestDestroyRequest(t *testing.T) {
	each(t, "rxe", func(r *rig, p place) {
		listener, dialer := r.listen(p, 1)
		param := Param{QPN: 0x1234, Responder: 1, Depth: 1, Retry: 7, RNRRetry: 7}
		r.ok(dialer.Connect(param))
		child, _ := r.request(p, 1)
		r.ok(child.Destroy())
		if ev := r.want(eventRejected, 2); ev.Status != 28 {
			r.Errorf("status %d", ev.Status)
		}
		at, _ := listener.Addrs()
		second := r.create(3)
		r.resolve(second, 3, netip.AddrPort{}, at)
		r.ok(second.Connect(param))
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.ch.FD()), Events: unix.POLLIN}}, 5000) // the request is there and not read
		r.ok(listener.Destroy())
		if ev := r.want(eventRejected, 3); ev.Status != 28 && ev.Status != 8 {
			r.Errorf("status %d", ev.Status)
		}
		r.quiet()
	})
}

func TestConnect(t *testing.T) {
	each(t, "rxe", func(r *rig, p place) {
		_, dialer := r.listen(p, 1)
		if mask, a, err := dialer.QPAttr(1); err != nil || mask&1 == 0 || a.State != 1 || a.Port != 1 {
			r.Errorf("attributes of INIT: %#x, %+v, %v", mask, a, err)
		}
		r.ok(dialer.Connect(Param{QPN: 0x1234, Responder: 3, Depth: 5, Retry: 6, RNRRetry: 4, Data: []byte("knock")}))
		child, asked := r.request(p, 1)
		if asked.QPN != 0x1234 || asked.Responder != 5 || asked.Depth != 3 || asked.Retry != 6 || asked.RNRRetry != 4 ||
			!bytes.HasPrefix(asked.Data, []byte("knock")) {
			r.Errorf("the request has %+v", asked)
		}
		child.Adopt(7)
		mask, a, err := child.QPAttr(2)
		r.ok(err)
		if a.State != 2 || a.DestQPN != 0x1234 || a.PathMTU == 0 || !a.AH.Global || a.AH.DGID == [16]byte{} || a.AH.Port != 1 {
			r.Errorf("attributes of RTR: %#x, %+v", mask, a)
		}
		mask, a, err = child.QPAttr(3)
		r.ok(err)
		if a.State != 3 || a.RetryCount != 6 || a.RNRRetry != 4 || a.Timeout == 0 {
			r.Errorf("attributes of RTS: %#x, %+v", mask, a)
		}
		r.ok(child.Accept(Param{QPN: 0x5678, Responder: 4, Depth: 2, Retry: 7, RNRRetry: 5, Data: []byte("come in")}))
		granted := r.want(eventConnectResponse, 2).Param
		if granted.QPN != 0x5678 || granted.Responder != 2 || granted.Depth != 4 || granted.RNRRetry != 5 || !bytes.HasPrefix(granted.Data, []byte("come in")) {
			r.Errorf("the answer has %+v", granted)
		}
		mask, a, err = dialer.QPAttr(2)
		r.ok(err)
		if a.DestQPN != 0x5678 || a.AH.DGID == [16]byte{} {
			r.Errorf("attributes of RTR: %#x, %+v", mask, a)
		}
		_, _, err = dialer.QPAttr(3)
		r.ok(err)
		r.ok(dialer.Establish())
		r.want(eventEstablished, 7) // of the context that Adopt gave
		r.quiet()                   // the side that dials gets none
		r.ok(dialer.Disconnect())
		r.want(eventDisconnected, 7)
		r.ok(child.Disconnect())
		r.want(eventDisconnected, 2)
		r.ok(child.Destroy())
		r.ok(dialer.Destroy())
		r.quiet()
	})
}

// TestDestroyRaces destroys identifiers while their events come.
func TestDestroyRaces(t *testing.T) {
	each(t, "rxe", func(r *rig, p place) {
		listener := r.create(1)
		r.ok(listener.Bind(p.port(0)))
		r.ok(listener.Listen(64))
		at, _ := listener.Addrs()
		const dialers, rounds = 8, 20
		var mu sync.Mutex
		gone := map[uint64]bool{}
		events := 0
		stop := make(chan struct{})
		var reader, wg sync.WaitGroup
		reader.Go(func() {
			for {
				mu.Lock()
				over := maps.Clone(gone)
				mu.Unlock()
				ev, err := r.ch.Next()
				switch {
				case err == nil && over[ev.Ctx]:
					r.Errorf("event %+v of an identifier that was destroyed", ev)
				case err == nil && ev.Child != nil:
					_ = ev.Child.Destroy()
				case err == nil:
					events++
				case !errors.Is(err, syscall.EAGAIN):
					r.Error(err)
					return
				default:
					select {
					case <-stop:
						return
					default:
						_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.ch.FD()), Events: unix.POLLIN}}, 20)
					}
				}
			}
		})
		for d := range dialers {
			wg.Go(func() {
				tick := time.NewTicker(100 * time.Microsecond)
				defer tick.Stop()
				for n := range rounds {
					ctx := uint64(1000 + d*rounds + n)
					id, err := r.ch.Create(ctx)
					if err != nil {
						r.Error(err)
						return
					}
					if err := id.ResolveAddr(netip.AddrPort{}, at, 2000); err != nil {
						r.Error(err)
					}
					for end := time.Now().Add(time.Duration(n) * time.Millisecond); time.Now().Before(end); {
						_ = id.ResolveRoute(2000)
						_ = id.Connect(Param{QPN: uint32(ctx), Responder: 1, Depth: 1, Retry: 7, RNRRetry: 7})
						<-tick.C
					}
					if err := id.Destroy(); err != nil {
						r.Error(err)
					}
					mu.Lock()
					gone[ctx] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		r.ok(listener.Destroy())
		close(stop)
		reader.Wait()
		if n := r.ch.count(); n != 0 {
			r.Errorf("%d identifiers are left", n)
		}
		r.Logf("%d events", events)
	})
}

// sh runs a shell command, which must succeed.
func (r *rig) sh(script string) {
	r.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		r.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// cable makes a network interface ucm0 with the address 10.77.0.1 and the device rxeucm, on a machine that is a throwaway.
func cable(t *testing.T) *rig {
	t.Helper()
	if os.Getenv("CINNABAR_RDMA_THROWAWAY") == "" {
		t.Skip("it reconfigures the machine; set CINNABAR_RDMA_THROWAWAY=1 on one that is a throwaway")
	}
	r := newRig(t)
	r.sh("ip link add ucm0 type veth peer name ucm1; ip addr add 10.77.0.1/24 dev ucm0; ip link set ucm0 up; ip link set ucm1 up")
	r.Cleanup(func() { r.sh("ip link delete ucm0") })
	r.sh("rdma link add rxeucm type rxe netdev ucm0")
	return r
}

// TestSharedGUID has two devices with one GUID, because both take it from the network interface.
func TestSharedGUID(t *testing.T) {
	r := cable(t)
	r.sh("rdma link add siwucm type siw netdev ucm0")
	var guid [8]byte
	text, err := os.ReadFile(filepath.Join(classDir, "siwucm", "node_guid"))
	r.ok(err)
	_, err = hex.Decode(guid[:], []byte(strings.ReplaceAll(strings.TrimSpace(string(text)), ":", "")))
	r.ok(err)
	indexes := map[string]uint32{}
	for n := range uint32(64) {
		if name, err := nameByIndex(n); err == nil {
			indexes[name] = n
		} else if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENODEV) {
			r.Errorf("index %d: %v", n, err)
		}
	}
	for _, name := range []string{"rxeucm", "siwucm"} {
		index, found := indexes[name]
		if got := r.ch.names.of(guid, index); !found || got != name {
			r.Errorf("device %s has index %d, by which it is %q", name, index, got)
		}
	}
	if got := r.ch.names.of(guid, noIndex); got != "rxeucm" {
		r.Errorf("the first device with the GUID is %q", got)
	}
}

// TestRemoval deletes a device while identifiers are bound to it.
func TestRemoval(t *testing.T) {
	r := cable(t)
	id, anywhere := r.create(5), r.create(6)
	addr := netip.MustParseAddrPort("10.77.0.1:0")
	var err error
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if err = id.Bind(addr); !errors.Is(err, syscall.ENODEV) {
			break
		}
	}
	r.ok(err)
	r.ok(anywhere.Bind(netip.MustParseAddrPort("0.0.0.0:0")))
	r.ok(anywhere.Listen(1))
	if id.Device() != "rxeucm" {
		r.Errorf("device %q", id.Device())
	}
	r.sh("rdma link delete rxeucm")
	if ev := r.want(eventDeviceRemoval, 5); ev.Device != "rxeucm" {
		r.Errorf("the removal is of %q", ev.Device)
	}
	if err := id.Listen(1); err == nil {
		r.Error("an identifier without its device listens")
	}
	r.ok(id.Destroy())
	r.ok(anywhere.Destroy())
	r.quiet()
}
