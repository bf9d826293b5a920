package oob

import (
	"errors"
	"maps"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// infoHead is a message of ibv_rc_pingpong as it stands on the wire: format
// "%04x:%06x:%06x:%s" of rdma-core's rc_pingpong.c, the GID in 32 digits.
const infoHead = "0001:00002a:c0ffee:fe80000000000000021500fffe000001"

// infoLines are text forms with their values.
var infoLines = map[string]QPInfo{
	infoHead: {LID: 1, QPN: 42, PSN: 0xc0ffee, GID: [16]byte{0xfe, 0x80, 8: 0x02, 0x15, 0x00, 0xff, 0xfe, 15: 1}},
	"0000:000000:000000:" + strings.Repeat("0", 32): {},
	"ffff:ffffff:ffffff:" + strings.Repeat("0", 32) + " at=192.0.2.1:18515 mr=00007f0000001000:deadbeef:0000000000010000 +iters=1000 +size=4096": {
		LID: 0xffff, QPN: 0xffffff, PSN: 0xffffff, Addr: netip.MustParseAddrPort("192.0.2.1:18515"),
		Region:   verbs.Region{RemoteAddr: verbs.RemoteAddr{Addr: 0x7f0000001000, RKey: 0xdeadbeef}, Size: 0x10000},
		Settings: map[string]string{"iters": "1000", "size": "4096"},
	},
	infoHead + " qk=80000001 +x=1": {
		LID: 1, QPN: 42, PSN: 0xc0ffee, GID: [16]byte{0xfe, 0x80, 8: 0x02, 0x15, 0x00, 0xff, 0xfe, 15: 1},
		QKey: 0x80000001, Settings: map[string]string{"x": "1"},
	},
	"0000:000001:000000:" + strings.Repeat("0", 32) + " at=[2001:db8::1]:1 +empty= +m.t_u-2=a=b+c": {
		QPN: 1, Addr: netip.MustParseAddrPort("[2001:db8::1]:1"), Settings: map[string]string{"empty": "", "m.t_u-2": "a=b+c"},
	},
}

func TestInfoText(t *testing.T) {
	equal := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	for line, in := range infoLines {
		got, err := in.AppendText(nil)
		if err != nil || string(got) != line {
			t.Errorf("got %q, %v, want %q", got, err, line)
		}
		back, err := ParseQPInfo(line)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if diff := cmp.Diff(back, in, equal); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	}
}

// A field that is cut off anywhere is refused, or is a shorter line of the form.
func TestInfoTruncated(t *testing.T) {
	for line := range infoLines {
		for n := range len(line) {
			in, err := ParseQPInfo(line[:n])
			if err != nil {
				continue
			}
			if back, err := in.AppendText(nil); err != nil || string(back) != line[:n] {
				t.Errorf("%q was accepted as %q, %v", line[:n], back, err)
			}
		}
	}
}

func TestParseInfoRefusals(t *testing.T) {
	for name, line := range map[string]string{
		"empty":                 "",
		"capitals":              strings.ToUpper(infoHead),
		"sign":                  "+001" + infoHead[4:],
		"other separator":       strings.Replace(infoHead, ":", ".", 1),
		"no hexadecimal digit":  strings.Replace(infoHead, "fe80", "fg80", 1),
		"two spaces":            infoHead + "  at=192.0.2.1:1",
		"space at the end":      infoHead + " ",
		"NUL":                   infoHead + "\x00",
		"no port":               infoHead + " at=192.0.2.1",
		"port too big":          infoHead + " at=192.0.2.1:65536",
		"leading zero in port":  infoHead + " at=192.0.2.1:01",
		"zone":                  infoHead + " at=[fe80::1%eth0]:1",
		"mapped address":        infoHead + " at=[::ffff:192.0.2.1]:1",
		"long form of address":  infoHead + " at=[2001:db8:0::1]:1",
		"address twice":         infoHead + " at=192.0.2.1:1 at=192.0.2.1:1",
		"region first":          infoHead + " mr=0000000000000000:00000001:0000000000000001 at=192.0.2.1:1",
		"empty region":          infoHead + " mr=0000000000000000:00000000:0000000000000000",
		"short region":          infoHead + " mr=0:1:1",
		"region wraps":          infoHead + " mr=ffffffffffffffff:00000001:0000000000000002",
		"key of zero":           infoHead + " qk=00000000",
		"short key":             infoHead + " qk=1",
		"key twice":             infoHead + " qk=00000001 qk=00000001",
		"unknown field":         infoHead + " x=1",
		"setting without value": infoHead + " +x",
		"setting without name":  infoHead + " +=1",
		"capital name":          infoHead + " +X=1",
		"setting twice":         infoHead + " +x=1 +x=1",
		"out of order":          infoHead + " +y=1 +x=1",
		"control character":     infoHead + " +x=\a",
		"not ASCII":             infoHead + " +x=ü",
		"long name":             infoHead + " +" + strings.Repeat("x", 257) + "=",
		"long value":            infoHead + " +x=" + strings.Repeat("x", 257),
		"long line":             infoHead + strings.Repeat(" +x=1", 1000),
	} {
		t.Run(name, func(t *testing.T) {
			in, err := ParseQPInfo(line)
			rig.WantErr(t, err, verbs.ErrInvalid)
			if diff := cmp.Diff(in, QPInfo{}, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Error("something was returned beside the error: " + diff)
			}
		})
	}
}

func TestInfoAppendRefusals(t *testing.T) {
	many := map[string]string{}
	for i := range 20 {
		many[strings.Repeat("x", i+1)] = strings.Repeat("y", 256)
	}
	for name, in := range map[string]QPInfo{
		"number of 25 bits": {QPN: 1 << 24},
		"PSN of 25 bits":    {PSN: 1 << 24},
		"region wraps":      {Region: verbs.Region{RemoteAddr: verbs.RemoteAddr{Addr: math.MaxUint64}, Size: 2}},
		"space":             {Settings: map[string]string{"x": "a b"}},
		"line feed":         {Settings: map[string]string{"x": "a\n"}},
		"capital":           {Settings: map[string]string{"X": ""}},
		"too long":          {Settings: many},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := in.AppendText(nil)
			rig.WantErr(t, err, verbs.ErrInvalid)
		})
	}
	// A zone and the mapped form mean nothing to the peer, and are left out.
	in := QPInfo{Addr: netip.MustParseAddrPort("[fe80::1%eth0]:1")}
	if got, err := in.AppendText(nil); err != nil || !strings.HasSuffix(string(got), " at=[fe80::1]:1") {
		t.Errorf("got %q, %v", got, err)
	}
}

// FuzzParseInfo checks that each accepted line is the one text form of its value.
func FuzzParseInfo(f *testing.F) {
	for line := range infoLines {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		in, err := ParseQPInfo(line)
		if err != nil {
			return
		}
		back, err := in.AppendText(nil)
		if err != nil || string(back) != line {
			t.Errorf("%q was accepted, but is written as %q, %v", line, back, err)
		}
	})
}

func TestRegionBinary(t *testing.T) {
	r := verbs.Region{RemoteAddr: verbs.RemoteAddr{Addr: 0x0102030405060708, RKey: 0x090a0b0c}, Size: 0x0d0e0f}
	b, err := r.AppendBinary([]byte{0xff})
	want := "\xff\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x00\x00\x00\x00\x00\x0d\x0e\x0f"
	if err != nil || string(b) != want {
		t.Errorf("got %x, %v", b, err)
	}
	padded := append(b[1:], make([]byte, 30)...) // as private data arrives
	if got, err := verbs.ParseRegion(padded); err != nil || got != r {
		t.Errorf("got %+v, %v", got, err)
	}
	for n := range verbs.RegionLen {
		_, err := verbs.ParseRegion(b[1 : 1+n])
		rig.WantErr(t, err, verbs.ErrInvalid)
	}
	wraps, _ := verbs.Region{RemoteAddr: verbs.RemoteAddr{Addr: math.MaxUint64}, Size: 2}.AppendBinary(nil)
	_, err = verbs.ParseRegion(wraps)
	rig.WantErr(t, err, verbs.ErrInvalid, "leave the address space")
}

func TestCompareSettings(t *testing.T) {
	same := map[string]string{"size": "4096", "iters": "1000"}
	if err := errors.Join(CompareSettings(same, maps.Clone(same)), CompareSettings(nil, nil), CompareSettings(nil, map[string]string{})); err != nil {
		t.Error(err)
	}
	err := CompareSettings(same, map[string]string{"size": "1024", "iters": "1000", "bidi": ""})
	m, ok := errors.AsType[*SettingsError](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	want := []SettingDifference{{Name: "bidi", Missing: true}, {Name: "size", Local: "4096", Remote: "1024"}}
	if diff := cmp.Diff(m.Differences, want); diff != "" {
		t.Error(diff)
	}
	if want := `size is "4096" here, "1024" there`; !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want it to say %q", err, want)
	}
}

// FuzzParseRegion checks that any bytes are refused or give a region inside the address space.
func FuzzParseRegion(f *testing.F) {
	f.Add(make([]byte, verbs.RegionLen))
	f.Add([]byte(strings.Repeat("\xff", verbs.RegionLen)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := verbs.ParseRegion(b)
		if err != nil {
			return
		}
		if back, _ := r.AppendBinary(nil); string(back) != string(b[:verbs.RegionLen]) || r.Addr+r.Size < r.Addr {
			t.Errorf("%x was accepted as %+v", b, r)
		}
	})
}
