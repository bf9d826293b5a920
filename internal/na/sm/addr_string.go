package sm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"cinnabar/internal/na"
)

// scheme is how addresses of this network begin.
const scheme = "na+sm://"

// identity identifies an endpoint on its host (na_sm_addr_key): its process, and its number among the endpoints that the process has
// opened.
type identity struct {
	pid int32
	id  uint8
}

// uri returns the part after "://" in the address of an endpoint without a name of its own.
func (i identity) uri() string {
	return strconv.Itoa(int(i.pid)) + "-" + strconv.Itoa(int(i.id))
}

// maxURI is the largest length in bytes of the part after "://", because C keeps "na_sm-", that part, and a zero in 64 bytes.
const maxURI = 64 - len(objectPrefix) - 1

// objectPrefix begins the names of the files and sockets that an endpoint owns (NA_SM_SHM_PREFIX).
const objectPrefix = "na_sm-"

// parseURI parses the part after "://". It returns the zero identity if s is the name of an endpoint.
func parseURI(s string) (identity, error) {
	if ident, ok := parseIdentity(s); ok {
		return ident, nil
	}
	return identity{}, checkName(s)
}

// parseIdentity reads "pid-id" in decimal, as na_sm_string_to_addr does but without anything behind it.
func parseIdentity(s string) (identity, bool) {
	p, i, ok := strings.Cut(s, "-")
	if !ok || !decimal(p) || !decimal(i) {
		return identity{}, false
	}
	pid, err := strconv.ParseInt(p, 10, 32)
	if err != nil || pid == 0 {
		return identity{}, false
	}
	id, err := strconv.ParseUint(i, 10, 8)
	if err != nil {
		return identity{}, false
	}
	return identity{int32(pid), uint8(id)}, true
}

// decimal reports whether s is a number as C prints it: without sign or leading zeros.
func decimal(s string) bool {
	if s == "" || len(s) > 1 && s[0] == '0' {
		return false
	}
	return strings.Trim(s, "0123456789") == ""
}

// checkName refuses names that cannot be one component of a path.
func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("no address after " + strconv.Quote(scheme))
	case len(s) > maxURI:
		return fmt.Errorf("a name of %d bytes; the limit is %d", len(s), maxURI)
	case strings.ContainsAny(s, "/#\x00"):
		return fmt.Errorf("name %q has a slash, a # or a zero byte in it", s)
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("name %q has control characters in it", s)
	}
	return nil
}

// cutScheme cuts "na+sm://" or "sm://" off.
func cutScheme(s string) (string, error) {
	class, rest, ok := strings.Cut(s, "://")
	if ok && (class == "na+sm" || class == "sm") {
		return rest, nil
	}
	return "", fmt.Errorf("%q is not an address of this network; one looks like %s1234-0", s, scheme)
}

// Serialized addresses (NA_Addr_serialize over sm), little endian:
//
//	0  process  4
//	4  id       1
//	5  zero     3
const serializedLen = 8

// appendSerialized appends an identity in binary form.
func appendSerialized(b []byte, ident identity) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(ident.pid))
	return append(b, ident.id, 0, 0, 0)
}

// parseSerialized parses all of b, which comes from a peer, in the form of appendSerialized. The last three bytes are padding of a C
// structure and may have any value.
func parseSerialized(b []byte) (identity, error) {
	if len(b) != serializedLen {
		return identity{}, fmt.Errorf("an address of %d bytes; it has %d", len(b), serializedLen)
	}
	ident := identity{int32(binary.LittleEndian.Uint32(b)), b[4]}
	if ident.pid <= 0 {
		return identity{}, fmt.Errorf("process %d; numbers of processes are positive", ident.pid)
	}
	return ident, nil
}

// Combined is the address of a process that listens on two networks (HG's auto_sm):
//
//	uid://8323328#na+sm://1234-0#ofi+tcp://127.0.0.1:46591
//
// Peers on the same host, which is known by the first part, use the second, and others the third.
type Combined struct {
	Host   string // the part after "uid://": a number or a UUID, depending on how C was built
	Shared string // "na+sm://1234-0"
	Other  string // the address on the other network
}

const hostScheme = "uid://"

// ParseCombined parses a combined address. ok reports whether s begins like one.
func ParseCombined(s string) (c Combined, ok bool, err error) {
	host, ok := strings.CutPrefix(s, hostScheme)
	if !ok {
		return c, false, nil
	}
	var rest string
	c.Host, rest, _ = strings.Cut(host, "#")
	c.Shared, c.Other, _ = strings.Cut(rest, "#")
	if c.Host == "" || c.Shared == "" || c.Other == "" || strings.Contains(c.Other, "#") {
		return Combined{}, true, fmt.Errorf("%q is not three addresses with # between: %sHOST#%sPID-ID#ofi+tcp://IP:PORT", s, hostScheme, scheme)
	}
	return c, true, nil
}

// String is the form that ParseCombined reads.
func (c Combined) String() string { return hostScheme + c.Host + "#" + c.Shared + "#" + c.Other }

// parseTarget parses the address string of a peer and returns the part after "://". host returns the identifier of this host.
func parseTarget(s string, host func() string) (uri string, ident identity, err error) {
	c, ok, err := ParseCombined(s)
	if err != nil {
		return "", identity{}, err
	}
	if ok {
		if own := host(); c.Host != own {
			return "", identity{}, &na.Error{Kind: na.Unsupported, Op: "lookup", Addr: s, Err: fmt.Errorf(
				"the peer's host is %s and this one %s: shared memory does not reach it; use %s", c.Host, own, c.Other)}
		}
		s = c.Shared
	}
	if uri, err = cutScheme(s); err != nil {
		return "", identity{}, err
	}
	ident, err = parseURI(uri)
	return uri, ident, err
}
