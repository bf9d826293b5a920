//go:build linux

package uverbs

import (
	"bytes"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestQueryGIDsOfRxe compares the table of addresses with the files by which the kernel shows it.
func TestQueryGIDsOfRxe(t *testing.T) {
	compareGIDs(t, "rxe", map[string]uint32{"IB/RoCE v1": 1, "RoCE v2": 2})
}

// TestQueryGIDsOfSiw does the same for siw.
func TestQueryGIDsOfSiw(t *testing.T) { compareGIDs(t, "siw", map[string]uint32{"IB/RoCE v1": 0}) }

func compareGIDs(t *testing.T, driver string, types map[string]uint32) {
	c := openDriver(t, driver)
	shut(t, c.Close)
	port := get[PortAttr](t)(c.QueryPort(1))
	dir := filepath.Join(deviceClass, c.name, "ports/1")
	var want []GID
	for i := range int(port.GIDs) {
		index := strconv.Itoa(i)
		gid, err := netip.ParseAddr(readLine(dir, "gids", index))
		if err != nil || gid.IsUnspecified() {
			continue // it is not set
		}
		name := readLine(dir, "gid_attrs/types", index)
		typ, known := types[name]
		if !known {
			t.Errorf("entry %d has type %q", i, name)
		}
		g := GID{GID: gid.As16(), Index: i, Port: 1, Type: typ}
		if ifc, err := net.InterfaceByName(readLine(dir, "gid_attrs/ndevs", index)); err == nil {
			g.Netdev = ifc.Index
		}
		want = append(want, g)
	}
	if got := get[[]GID](t)(c.QueryGIDs()); len(got) == 0 || !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestGIDLayout(t *testing.T) {
	want := []GID{
		{GID: goldenPath.DGID, Index: 0x21222324, Port: 0x31, Type: 2, Netdev: 0x41},
		{GID: [16]byte{15: 1}, Index: 0x51, Port: 2},
	}
	if got := parseGIDs(golden(t)["gids"], 2); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestHostileGIDs lets the kernel count more entries than there is room for, and fill them with anything.
func TestHostileGIDs(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, 2*gidEntrySize+gidEntrySize/2)
	for count, want := range map[uint64]int{0: 0, 1: 1, 2: 2, 3: 2, 1 << 32: 2, 1 << 63: 2, math.MaxUint64: 2} {
		if got := parseGIDs(b, count); len(got) != want {
			t.Errorf("%d of %d entries", len(got), count)
		}
	}
	if got := parseGIDs(nil, math.MaxUint64); len(got) != 0 {
		t.Errorf("%d entries of no memory", len(got))
	}
}
