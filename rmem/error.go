package rmem

import (
	"errors"
	"fmt"

	"cinnabar"
)

// The answers of a server that refuses a request, for errors.Is.
var (
	ErrFreed    = errors.New("the region was freed")              // double free, use after free, its client has gone
	ErrExpired  = errors.New("the lease of the region has ended") // renew it in time
	ErrRevoked  = errors.New("the server has revoked the region") // or it is being closed
	ErrUnknown  = errors.New("there is no such region")           // or it has been gone for long
	ErrUsed     = errors.New("the region was lent for one read, which it has had")
	ErrOnce     = errors.New("the region is lent for one read")                // anything else is for its owner
	ErrNotOwner = errors.New("not the owner's token")                          // for Free and Renew
	ErrNoLease  = errors.New("the region has no lease")                        // for Renew
	ErrQuota    = errors.New("over quota")                                     // the error names the limit and the bytes that are left
	ErrSize     = errors.New("impossible size")                                // of a region
	ErrRange    = errors.New("out of the region's range")                      // the error has the range
	ErrAligned  = errors.New("atomics need an offset that is a multiple of 8") // bytes
	ErrSession  = errors.New("the server does not know this client any more")  // dial again; regions without a lease are gone
	ErrServer   = errors.New("the server failed")                              // its log says why
	ErrProtocol = errors.New("the response does not fit the request")          // another version, or no rmem server
	ErrNotHere  = errors.New("servers over verbs copy only between their own regions")
	ErrClosed   = errors.New("the client is closed")

	// ErrElsewhere is the error of a copy from a server that Config.CopyFrom does not allow.
	ErrElsewhere = errors.New("the server's configuration does not allow copies from that server (Config.CopyFrom)")
	// ErrBusy is the error of a request that the server does not serve, because requests of the same host are refused
	// too often, or take up too much.
	ErrBusy = errors.New("the server does too much for this host already: ask again later")
)

// status is how the server says it on the wire. The order is part of the protocol.
type status uint32

const (
	statusOK status = iota
	statusFreed
	statusExpired
	statusRevoked
	statusUnknown
	statusNotOwner
	statusNoLease
	statusQuota
	statusClientQuota
	statusClients
	statusSize
	statusRange
	statusAligned
	statusSession
	statusServer
	statusUsed
	statusOnce
	statusRegions
	statusHostQuota
	statusHostShare
	statusBusy
	statusElsewhere
)

// meanings are the errors that stand for statuses.
var meanings = [...]error{
	statusFreed: ErrFreed, statusExpired: ErrExpired, statusRevoked: ErrRevoked, statusUnknown: ErrUnknown, statusNotOwner: ErrNotOwner,
	statusNoLease: ErrNoLease, statusQuota: ErrQuota, statusClientQuota: ErrQuota, statusClients: ErrQuota, statusSize: ErrSize, statusRange: ErrRange,
	statusAligned: ErrAligned, statusSession: ErrSession, statusServer: ErrServer, statusUsed: ErrUsed, statusOnce: ErrOnce,
	statusRegions: ErrQuota, statusHostQuota: ErrQuota, statusHostShare: ErrQuota, statusBusy: ErrBusy, statusElsewhere: ErrElsewhere,
}

// Error is why an operation on remote memory failed.
type Error struct {
	Op     string // "allocate", "read"
	Server string // its address
	ID     uint64 // of the region; 0 if none is involved
	Err    error  // one of the errors of this package with its limits, or the reason why the server was not reached
}

func (e *Error) Error() string {
	cause := e.Err
	if c, ok := cause.(*cinnabar.Error); ok && c != nil && c.Addr == e.Server { //nolint:errorlint // a wrapped one has text of its own around it
		cause = &cinnabar.Error{Code: c.Code, Remote: c.Remote, Err: c.Err} // without operation and address, because this text has them
	}
	if e.ID == 0 {
		return fmt.Sprintf("rmem: %s at %s: %v", e.Op, e.Server, cause)
	}
	return fmt.Sprintf("rmem: %s region %016x at %s: %v", e.Op, e.ID, e.Server, cause)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// meaning is the error that the server's answer stands for, nil for success.
func (r *response) meaning() error {
	switch s := status(r.Status); {
	case s == statusOK:
		return nil
	case int(s) >= len(meanings):
		return fmt.Errorf("%w: status %d", ErrProtocol, r.Status)
	case s == statusQuota:
		return fmt.Errorf("%w: the server lends %d bytes in all, %d are left", ErrQuota, r.Limit, r.Left)
	case s == statusClientQuota:
		return fmt.Errorf("%w: a client may have %d bytes, %d are left", ErrQuota, r.Limit, r.Left)
	case s == statusClients:
		return fmt.Errorf("%w: the server takes %d clients in all, and places that are free are kept for other hosts", ErrQuota, r.Limit)
	case s == statusRegions:
		return fmt.Errorf("%w: the server lends %d regions in all, and those that are free are kept for other hosts", ErrQuota, r.Limit)
	case s == statusHostQuota:
		return fmt.Errorf("%w: the clients of a host may have %d bytes, %d are left", ErrQuota, r.Limit, r.Left)
	case s == statusHostShare:
		return fmt.Errorf("%w: the clients of this host have %d bytes, and those that are free are kept for other hosts (Config.HostQuota)", ErrQuota, r.Limit)
	case s == statusSize:
		return fmt.Errorf("%w: from 1 to %d bytes", ErrSize, r.Limit)
	case s == statusRange:
		return fmt.Errorf("%w of %d bytes", ErrRange, r.Limit)
	default:
		return meanings[s]
	}
}
