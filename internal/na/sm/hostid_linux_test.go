package sm

import (
	"encoding/binary"
	"net"
	"strconv"
	"testing"
)

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
