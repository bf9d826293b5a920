package wire

import (
	"strconv"
	"strings"

	"cinnabar/codes"
)

// CodeName returns the name that number n has in a release of Mercury, "2.3.1". Numbers above 21 have shifted twice:
// 2.4.0 put HG_IO_ERROR at 22 and 2.4.1 put HG_HOSTFIREWALL at 23. A response does not have its sender's release, so
// the caller knows it from elsewhere; an empty or unknown release is read as the newest.
func CodeName(n uint8, release string) string {
	c := codes.Code(n)
	if c > codes.Canceled {
		switch {
		case release == "2.4.0":
			if c >= codes.HostFirewall {
				c++
			}
		case olderThan24(release):
			c += 2
		}
	}
	if c > codes.OtherError { // beyond the last one of that release
		return "HG return code " + strconv.Itoa(int(n))
	}
	return c.Error()
}

// olderThan24 reports whether release is of the series 0 to 2.3.
func olderThan24(release string) bool {
	first, rest, _ := strings.Cut(release, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(second)
	if err != nil {
		return major < 2
	}
	return major < 2 || major == 2 && minor < 4
}
