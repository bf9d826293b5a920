package sm

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// TestLookupTouchesNothing: a name is looked up before there is an endpoint of that name. The first operation finds the
// endpoint, and after its end the endpoint that has taken the name.
//
// parity: D06 D20
func TestLookupTouchesNothing(t *testing.T) {
	prefix := privatePrefix("l")
	client := open(t, Config{Prefix: prefix})
	to, err := client.Lookup("na+sm://later")
	if err != nil {
		t.Fatal(err)
	}
	name := to.(na.Named)
	if name.Reached() != nil || name.Done() != nil || name.String() != "na+sm://later" || name.Account() == nil {
		t.Errorf("an address that nothing has used: %v", name)
	}
	if _, err := name.Resolve(t.Context()); na.KindOf(err) != na.Unreachable {
		t.Errorf("before there is an endpoint: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := name.Resolve(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	for range 2 {
		server, _ := serve(t, Config{Prefix: prefix, Address: "na+sm://later"})
		a := resolved(t, name)
		if _, err := newCaller(client, a).call(t, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if name.Reached() != a || !name.Equal(a) || !a.Equal(name) || name.Account() != a.Account() {
			t.Errorf("%v stands for %v after a call", name, name.Reached())
		}
		again, err := client.Lookup("na+sm://later")
		if err != nil || !again.Equal(name) || again.(na.Named).Reached() != nil {
			t.Errorf("a second lookup: %v, %v", again, err)
		}
		shut(t, server)
		<-name.Done()
		if name.Reached() != nil {
			t.Error("a process that has ended counts as reached")
		}
	}
}

// TestOperationWithName: an operation needs the address of a process, which a name is not.
func TestOperationWithName(t *testing.T) {
	client := open(t, Config{Prefix: privatePrefix("l")})
	to, err := client.Lookup("na+sm://nobody")
	if err != nil {
		t.Fatal(err)
	}
	s := newSignal()
	client.SendRequest(&s.op, to, 1, []byte("x"))
	<-s.ch
	if na.KindOf(s.op.Err) != na.Invalid {
		t.Error(s.op.Err)
	}
}

// parity: H127
func TestHostID(t *testing.T) {
	for _, tc := range []struct {
		ip   net.IP
		want string
	}{
		{net.IPv4(127, 0, 0, 1), "8323328"},   // 007f0100
		{net.IPv4(127, 0, 1, 1), "8323329"},   // 007f0101
		{net.IPv4(10, 0, 200, 255), "720840"}, // 000affc8
		{nil, "0"},
		{net.IPv6loopback, "0"},
	} {
		if got := formatHostID(addressID(tc.ip)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.ip, got, tc.want)
		}
	}
	if got := formatHostID(binary.LittleEndian.Uint32([]byte{0xff, 0xff, 0xff, 0xff})); got != "-1" {
		t.Errorf("all ones: %s, want a signed number", got)
	}
	if _, err := strconv.ParseInt(hostID(), 10, 32); err != nil {
		t.Errorf("this host's: %v", err)
	}
}

// TestReachable finds out whether an endpoint can be connected to, and leaves no trace in its region.
// parity: N06
func TestReachable(t *testing.T) {
	const beside = "ofi+tcp://192.0.2.1:1"
	unasked := func(pid int) error {
		t.Errorf("process %d is looked for, although its region has the address", pid)
		return nil
	}
	client := open(t, Config{})
	server, _ := serve(t, Config{})
	a, err := client.Lookup(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Reachable(a, beside, unasked); na.KindOf(err) != na.Unreachable || !strings.Contains(err.Error(), beside) {
		t.Errorf("a server without an address beside shared memory: %v", err)
	}
	if err := server.SetBeside(beside); err != nil {
		t.Fatal(err)
	}
	if err := client.Reachable(a, beside, unasked); err != nil {
		t.Errorf("a server: %v", err)
	}
	if err := client.Reachable(a, beside+"0", unasked); na.KindOf(err) != na.Unreachable {
		t.Errorf("a server with another address beside shared memory: %v", err)
	}
	if a.Done() != nil || server.region.claimed(1) {
		t.Error("there is a connection")
	}
	var pairs []int
	for p := server.region.claimPair(); p >= 0; p = server.region.claimPair() {
		pairs = append(pairs, p)
	}
	if err := client.Reachable(a, beside, unasked); na.KindOf(err) != na.Unreachable || !strings.Contains(err.Error(), "places") {
		t.Errorf("a server without a free place: %v", err)
	}
	for _, p := range pairs {
		server.region.releasePair(p)
	}
	server.Shutdown()
	if err := client.Reachable(a, beside, unasked); na.KindOf(err) != na.Unreachable {
		t.Errorf("a server that ends: %v", err)
	}
	gone, err := client.Lookup("na+sm://2147483647-0")
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Reachable(gone, beside, unasked); na.KindOf(err) != na.Unreachable {
		t.Errorf("a process that does not exist: %v", err)
	}
	if err := server.Reachable(a, beside, unasked); na.KindOf(err) != na.Invalid {
		t.Errorf("an address of another endpoint: %v", err)
	}
}

// TestReachableWithoutExtension checks that Reachable calls owns for a region without a hash of an address, as C makes it.
// parity: N06
func TestReachableWithoutExtension(t *testing.T) {
	const beside = "ofi+tcp://192.0.2.1:1"
	client := open(t, Config{})
	server, _ := serve(t, Config{})
	shm.Uint64(server.region.b, offMagic).Store(0)
	a, err := client.Lookup(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other := errors.New("another process")
	for _, want := range []error{nil, other} {
		asked := 0
		if err := client.Reachable(a, beside, func(pid int) error { asked = pid; return want }); !errors.Is(err, want) || asked != os.Getpid() {
			t.Errorf("process %d is asked for, error %v, want %v", asked, err, want)
		}
	}
	shm.Uint64(server.region.b, offMagic).Store(magic)
}
