package verbs

// MWType is the type of a memory window (enum ibv_mw_type).
type MWType uint32

const (
	// MWType1 is a window whose key is valid on all queue pairs of its protection domain. A bound window can be bound again, which revokes the old key.
	MWType1 MWType = 1
	// MWType2 is a window whose key is valid only on the queue pair that bound it. It must be invalidated before it can be bound again.
	MWType2 MWType = 2
)

// String returns the name of the C constant.
func (t MWType) String() string {
	return nameOf([]string{MWType1: "IBV_MW_TYPE_1", MWType2: "IBV_MW_TYPE_2"}, int(t))
}

// MemoryWindow is a memory window (struct ibv_mw): a remote key for a part of a memory region, with rights of its own. It is
// bound by a work request (OpBindMW), which costs less than a registration. The region needs the right [MWBind], and
// [LocalWrite] if peers may write through the window; it needs no remote rights itself. A peer names the bytes by the addresses that they have
// in the region ([MR.RemoteAt]) and by the key of the window ([RemoteAddr.WithKey]).
//
// The key of a window of type 2 is valid until OpLocalInv of the owner or OpSendInvalidate of the peer revokes it; on the software device also until
// the connection ends. The device refuses a request with a revoked key, or for a byte outside of the window, like one with a wrong key of a region. Some
// devices check less; docs/verbs.md lists them. A request of the peer that is under way when the owner revokes the key may fail too, and end the
// connection.
//
// All methods are safe for concurrent use.
type MemoryWindow interface {
	// Type returns the type of the window.
	Type() MWType
	// RKey returns the key that the last posted OpBindMW gave the window; each post gives a new one. Before the first OpBindMW
	// the key is valid for no peer. A Send that is posted behind OpBindMW may carry the key.
	RKey() uint32
	// Close revokes the key and releases the window (ibv_dealloc_mw). It waits for accesses of peers by the key that are under way: when it
	// returns, the device touches no memory for the window. A second Close does nothing; after an error Close can be called again.
	Close() error
}

// AllocMW makes a memory window of the domain (ibv_alloc_mw). The caller closes it before the domain. Its error matches
// [errors.ErrUnsupported] and names type and device if the device has no windows of the type ([CapMW1], [CapMW2]).
func (pd *PD) AllocMW(t MWType) (MemoryWindow, error) {
	const op = "allocate memory window"
	attr, err := pd.dev.limits()
	if err != nil {
		return nil, err
	}
	need, ok := map[MWType]Caps{MWType1: CapMW1, MWType2: CapMW2}[t]
	if !ok {
		return nil, Errorf(op, ErrInvalid, "type %d is unknown; the types are 1 and 2", t)
	}
	if !attr.Caps.Has(need) {
		return nil, Unsupported(op, "device %s has no memory windows of type %d", attr.Name, t)
	}
	return pd.drv.AllocMW(t)
}
