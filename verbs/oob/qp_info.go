package oob

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cinnabar/verbs"
)

// QPInfo identifies a queue pair to its peer before the two are connected (struct
// pingpong_dest of libibverbs' examples). Its text form is one line that begins like the message of
// ibv_rc_pingpong:
//
//	LLLL:QQQQQQ:PPPPPP:GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG at=ADDR:PORT mr=ADDRESS:RKEY:SIZE qk=QKEY +NAME=VALUE ...
//
// with all numbers but those of at= and of the settings in hexadecimal of fixed
// width. Only the first field is always there.
type QPInfo struct {
	LID uint16
	QPN uint32 // 24 bits
	PSN uint32 // first packet sequence number, 24 bits
	GID [16]byte

	Addr   netip.AddrPort // address at which this side listens for the connection manager; zero: it does not listen
	Region verbs.Region   // zero: none
	QKey   uint32         // of a UD queue pair; datagrams to it need this key

	// Settings are options that must be the same on both sides, by name. Names
	// consist of a-z, 0-9, '-', '_' and '.', values of printable ASCII without spaces.
	Settings map[string]string
}

// Limits of the text form.
const (
	maxInfoLine = 4096 // bytes with the line feed
	maxSetting  = 256  // bytes of a name or a value
	infoHeadLen = 4 + 1 + 6 + 1 + 6 + 1 + 32
)

// AppendText appends the text form, without a line feed. It fails if a field is
// outside of the range that the text form has for it.
func (in QPInfo) AppendText(b []byte) ([]byte, error) {
	const op = "format exchange line"
	if in.QPN > 0xffffff || in.PSN > 0xffffff {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "queue pair number %#x or sequence number %#x is over 24 bits", in.QPN, in.PSN)
	}
	if err := in.Region.Check(); err != nil {
		return nil, err
	}
	start := len(b)
	b = in.appendHead(b)
	if in.Addr.IsValid() {
		a := netip.AddrPortFrom(in.Addr.Addr().Unmap().WithZone(""), in.Addr.Port()) // a zone means nothing elsewhere
		b = a.AppendTo(append(b, " at="...))
	}
	if in.Region != (verbs.Region{}) {
		b = fmt.Appendf(b, " mr=%016x:%08x:%016x", in.Region.Addr, in.Region.RKey, in.Region.Size)
	}
	if in.QKey != 0 {
		b = fmt.Appendf(b, " qk=%08x", in.QKey)
	}
	for _, k := range slices.Sorted(maps.Keys(in.Settings)) {
		if v := in.Settings[k]; !isSettingName(k) || !isSettingValue(v) {
			return nil, verbs.Errorf(op, verbs.ErrInvalid, "setting %q=%q has characters that the line cannot hold, or over %d", k, v, maxSetting)
		}
		b = append(append(append(append(b, " +"...), k...), '='), in.Settings[k]...)
	}
	if n := len(b) - start; n >= maxInfoLine {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "%d bytes are over the limit of %d", n, maxInfoLine-1)
	}
	return b, nil
}

// appendHead appends the field that names the queue pair.
func (in QPInfo) appendHead(b []byte) []byte {
	return fmt.Appendf(b, "%04x:%06x:%06x:%x", in.LID, in.QPN, in.PSN, in.GID)
}

// ParseQPInfo reads the form that [QPInfo.AppendText] writes and no other: fields in
// another order, capitals or leading zeros are refused.
func ParseQPInfo(line string) (QPInfo, error) {
	var in QPInfo
	if len(line) >= maxInfoLine {
		return in, infoError("%d bytes are over the limit of %d", len(line), maxInfoLine-1)
	}
	fields := strings.Split(line, " ")
	if err := in.parseHead(fields[0]); err != nil {
		return QPInfo{}, err
	}
	fields = fields[1:]
	for _, parse := range []func(string) (bool, error){in.parseAddr, in.parseRegion, in.parseQKey} {
		if len(fields) == 0 {
			break
		}
		took, err := parse(fields[0])
		if err != nil {
			return QPInfo{}, err
		}
		if took {
			fields = fields[1:]
		}
	}
	if err := in.parseSettings(fields); err != nil {
		return QPInfo{}, err
	}
	return in, nil
}

func infoError(format string, args ...any) error {
	return verbs.Errorf("parse exchange line", verbs.ErrInvalid, format, args...)
}

// parseHead reads the field that names the queue pair.
func (in *QPInfo) parseHead(s string) error {
	if len(s) != infoHeadLen || s[4] != ':' || s[11] != ':' || s[18] != ':' {
		return infoError("%.64q does not have the form 0000:000000:000000:gid", s)
	}
	lid, ok1 := parseHex(s[:4])
	qpn, ok2 := parseHex(s[5:11])
	psn, ok3 := parseHex(s[12:18])
	if !ok1 || !ok2 || !ok3 || !isLowerHex(s[19:]) {
		return infoError("%.64q has characters that are no lower-case hexadecimal digits", s)
	}
	in.LID, in.QPN, in.PSN = uint16(lid), uint32(qpn), uint32(psn)
	_, err := hex.Decode(in.GID[:], []byte(s[19:]))
	return err
}

// parseAddr reads an at= field; false if s is another field.
func (in *QPInfo) parseAddr(s string) (bool, error) {
	v, ok := strings.CutPrefix(s, "at=")
	if !ok {
		return false, nil
	}
	a, err := netip.ParseAddrPort(v)
	if err != nil || a.String() != v || a.Addr().Zone() != "" || a.Addr().Is4In6() {
		return false, infoError("%.64q is no address and port", v)
	}
	in.Addr = a
	return true, nil
}

// parseRegion reads an mr= field; false if s is another field.
func (in *QPInfo) parseRegion(s string) (bool, error) {
	v, ok := strings.CutPrefix(s, "mr=")
	if !ok {
		return false, nil
	}
	if len(v) != 16+1+8+1+16 || v[16] != ':' || v[25] != ':' {
		return false, infoError("%.64q does not have the form address:rkey:size", v)
	}
	addr, ok1 := parseHex(v[:16])
	key, ok2 := parseHex(v[17:25])
	size, ok3 := parseHex(v[26:])
	r := verbs.Region{RemoteAddr: verbs.RemoteAddr{Addr: addr, RKey: uint32(key)}, Size: size}
	if !ok1 || !ok2 || !ok3 || r == (verbs.Region{}) {
		return false, infoError("%.64q does not have the form address:rkey:size", v)
	}
	in.Region = r
	return true, r.Check()
}

// parseQKey reads a qk= field; false if s is another field.
func (in *QPInfo) parseQKey(s string) (bool, error) {
	v, ok := strings.CutPrefix(s, "qk=")
	if !ok {
		return false, nil
	}
	key, ok := parseHex(v)
	if len(v) != 8 || !ok || key == 0 {
		return false, infoError("%.64q is no key of 8 digits", v)
	}
	in.QKey = uint32(key)
	return true, nil
}

// parseSettings reads the rest, which must be sorted by name.
func (in *QPInfo) parseSettings(fields []string) error {
	last := ""
	for _, f := range fields {
		k, v, ok := strings.Cut(strings.TrimPrefix(f, "+"), "=")
		if !ok || !strings.HasPrefix(f, "+") || !isSettingName(k) || !isSettingValue(v) || k <= last {
			return infoError("%.64q is no setting, or out of order", f)
		}
		if in.Settings == nil {
			in.Settings = map[string]string{}
		}
		in.Settings[k], last = v, k
	}
	return nil
}

// parseHex reads lower-case hexadecimal digits, at most 16.
func parseHex(s string) (uint64, bool) {
	if !isLowerHex(s) {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 64)
	return v, err == nil
}

func isLowerHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

func isSettingName(s string) bool {
	return s != "" && len(s) <= maxSetting && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

func isSettingValue(s string) bool {
	notPrintable := func(r rune) bool { return r <= ' ' || r > '~' }
	return len(s) <= maxSetting && !strings.ContainsFunc(s, notPrintable)
}

// A SettingDifference is a setting that differs between the two sides of a connection.
type SettingDifference struct {
	Name          string
	Local, Remote string
	Missing       bool // one side does not have the setting at all; its value is ""
}

// SettingsError lists the settings that differ between the two sides, sorted by name.
type SettingsError struct{ Differences []SettingDifference }

// Error names every setting with both values.
func (e *SettingsError) Error() string {
	var list []string
	for _, d := range e.Differences {
		list = append(list, fmt.Sprintf("%s is %q here, %q there", d.Name, d.Local, d.Remote))
	}
	return "the two sides are set up differently: " + strings.Join(list, "; ")
}

// CompareSettings compares the settings of two sides. It returns nil if they are the
// same, else a [*SettingsError].
func CompareSettings(local, remote map[string]string) error {
	all := maps.Clone(local)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, remote)
	var diffs []SettingDifference
	for _, k := range slices.Sorted(maps.Keys(all)) {
		l, okL := local[k]
		r, okR := remote[k]
		if l != r || okL != okR {
			diffs = append(diffs, SettingDifference{Name: k, Local: l, Remote: r, Missing: okL != okR})
		}
	}
	if diffs == nil {
		return nil
	}
	return &SettingsError{Differences: diffs}
}
