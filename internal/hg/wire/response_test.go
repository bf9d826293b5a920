package wire

import "testing"

// parity: H05
func TestCodeNames(t *testing.T) {
	for _, tc := range []struct {
		n       uint8
		release string
		want    string
	}{
		{0, "", "HG_SUCCESS"}, {2, "2.3.1", "HG_NOENTRY"}, {21, "2.4.0", "HG_CANCELED"}, {26, "", "HG_OTHER_ERROR"},
		{22, "2.4.1", "HG_IO_ERROR"}, {23, "2.4.1", "HG_HOSTFIREWALL"}, {24, "2.4.1", "HG_CHECKSUM_ERROR"},
		{22, "2.4.0", "HG_IO_ERROR"}, {23, "2.4.0", "HG_CHECKSUM_ERROR"}, {24, "2.4.0", "HG_NA_ERROR"}, {25, "2.4.0", "HG_OTHER_ERROR"},
		{22, "2.3.0", "HG_CHECKSUM_ERROR"}, {23, "2.3.1", "HG_NA_ERROR"}, {24, "2.1", "HG_OTHER_ERROR"}, {22, "1.0.1", "HG_CHECKSUM_ERROR"},
		{25, "2.3.1", "HG return code 25"}, {26, "2.4.0", "HG return code 26"}, {27, "2.4.1", "HG return code 27"}, {255, "2.3.1", "HG return code 255"},
		{23, "2.5.0", "HG_HOSTFIREWALL"}, {23, "newest", "HG_HOSTFIREWALL"},
	} {
		if got := CodeName(tc.n, tc.release); got != tc.want {
			t.Errorf("CodeName(%d, %q) = %s, want %s", tc.n, tc.release, got, tc.want)
		}
	}
}
