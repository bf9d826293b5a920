package iwarp

import (
	"net/netip"
	"testing"
)

// TestAsksCRC has NoLocalCRC drop the CRC between addresses of one host, and between no others.
func TestAsksCRC(t *testing.T) {
	for _, tt := range []struct {
		local, remote string
		within        bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.9", true},
		{"::1", "::1", true},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "127.0.0.1", false},
		{"2001:db8::1", "2001:db8::2", false},
	} {
		local, remote := netip.MustParseAddr(tt.local), netip.MustParseAddr(tt.remote)
		if got := (Config{NoLocalCRC: true}).asksCRC(local, remote); got != !tt.within {
			t.Errorf("NoLocalCRC from %v to %v: CRC %t, want %t", local, remote, got, !tt.within)
		}
		if !(Config{}).asksCRC(local, remote) {
			t.Errorf("default from %v to %v: no CRC", local, remote)
		}
		if (Config{NoCRC: true}).asksCRC(local, remote) {
			t.Errorf("NoCRC from %v to %v: CRC", local, remote)
		}
	}
}
