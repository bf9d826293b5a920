//go:build linux

package uverbs

import "runtime"

// GID is an entry of the table of addresses of a port: struct ib_uverbs_gid_entry of rdma/ib_user_ioctl_verbs.h.
type GID struct {
	GID    [16]byte
	Index  int
	Port   int
	Type   uint32 // IB_UVERBS_GID_TYPE_*: 0 is InfiniBand, 1 RoCE v1, 2 RoCE v2
	Netdev int    // the index of the network interface, 0 for none
}

const (
	gidEntrySize = 32
	maxGIDs      = 256 // entries that QueryGIDs returns; a table has room for thousands
)

// QueryGIDs returns the set entries of all ports, and leaves out those after the 256th. Kernels before Linux 5.10 lack the command
// (UVERBS_METHOD_QUERY_GID_TABLE), and QueryGIDs fails.
func (c *Context) QueryGIDs() ([]GID, error) {
	table, count := make([]byte, maxGIDs*gidEntrySize), make([]byte, 8)
	var pin runtime.Pinner
	defer pin.Unpin()
	cmd := newIoctl(objectDevice, methodQueryGIDTable, c.prov.driverID())
	cmd = cmd.value(attrEntrySize, gidEntrySize).value(attrGIDFlags, 0).output(attrGIDEntries, attrMandatory, table, &pin)
	if err := cmd.output(attrGIDCount, attrMandatory, count, &pin).call(c.fd); err != nil {
		return nil, err
	}
	return parseGIDs(table, native.Uint64(count)), nil
}

// parseGIDs returns the first count entries of b.
func parseGIDs(b []byte, count uint64) []GID {
	table := make([]GID, min(count, uint64(len(b)/gidEntrySize)))
	for i := range table {
		e := b[i*gidEntrySize:]
		table[i] = GID{
			GID: [16]byte(e[:16]), Index: int(native.Uint32(e[16:])), Port: int(native.Uint32(e[20:])), Type: native.Uint32(e[24:]), Netdev: int(native.Uint32(e[28:])),
		}
	}
	return table
}
