package sm

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"testing"

	"cinnabar/internal/na"
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
