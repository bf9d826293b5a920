// Package link joins package rmem to networks that are not an engine's, each of which has a package of its own below rmem, such as
// rmem/verbsrmem. Package rmem has the clients, the regions and the messages; the network moves messages, registers memory, and
// reads and writes it. Thus a program that imports only rmem links no verbs package.
package link

import (
	"context"
	"errors"
	"time"

	"cinnabar/internal/hostquota"
)

// Rmem is the part of package rmem that serves other networks. Package rmem sets it when the program starts. A network converts it
// to an interface with types of package rmem, which this package cannot import.
var Rmem any

// Remote is a region's memory, which a client reads and writes without the server's program. Offsets are in bytes.
type Remote interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	WriteAt(ctx context.Context, p []byte, off int64) (int, error)
}

// Transport is a client's connection to a server, which sends one response when it has accepted the client, and then one to each
// request. All methods may be called concurrently.
type Transport interface {
	// Receive calls decode with the response that the server sends first. decode must not keep its argument.
	Receive(ctx context.Context, decode func([]byte) error) error
	// Exchange sends a request and calls decode with the response, which decode must not keep.
	Exchange(ctx context.Context, request []byte, decode func([]byte) error) error
	// Remote returns the memory at an address of the server, for which it has given the client a key.
	Remote(addr uint64, key uint32) Remote
	// Server returns the address of the server as Handle.Server has it.
	Server() string
	// Done is closed when the connection has ended.
	Done() <-chan struct{}
	// Close ends the connection with an error that operations under way and later ones return. It waits for them.
	Close(cause error) error
}

// Memory is the registration of a region's memory at the server, for each connection by which clients reach it.
type Memory interface {
	// Locate registers the memory for a connection, unless it is registered already, and returns its address and key. It
	// returns ErrEnded after Close, and ErrTooManyOpen if the connection has its share.
	Locate(conn any) (addr uint64, key uint32, err error)
	// Close ends all registrations. When it returns, no client reaches the memory.
	Close() error
}

// Errors of Memory.Locate.
var (
	ErrEnded       = errors.New("the region has ended")
	ErrTooManyOpen = errors.New("too many regions of other clients are open: close some of them")
)

// ErrUnreadable is the error of Session.Decode.
var ErrUnreadable = errors.New("a request that cannot be read")

// Lender is the part of a server that is the same on all networks. Stats is the type of its statistics, which package rmem declares.
// All methods may be called concurrently.
type Lender[Stats any] interface {
	// NewSession returns the session of a client. peer is its address, for logs.
	NewSession(peer string, h hostquota.Host) Session
	// Revoke ends a region, and reports whether there was one.
	Revoke(id uint64) bool
	// Stats returns a snapshot of the quota, the clients and the regions.
	Stats() Stats
	// Close revokes all regions and refuses new clients and regions.
	Close()
}

// Session is a client at the server. One goroutine at a time may use it.
type Session interface {
	// Account returns the account of the client's host.
	Account() *hostquota.Account
	// Begin returns the first response. conn is the argument of Memory.Locate for this client. Without ok the server refuses
	// the client, and the response says why.
	Begin(conn any) (response []byte, ok bool, err error)
	// Decode takes a request, and keeps nothing of b. The connection is to be ended if it returns an error.
	Decode(b []byte) error
	// Serve serves the request of the last Decode. The response is to be sent after delay; if delay is not 0, done is to be
	// called then.
	Serve() (response []byte, delay time.Duration, done func(), err error)
	// End frees the client's regions without a lease. broken is nil, or the violation of the protocol that ended the
	// connection.
	End(broken error)
}

// Pauses between attempts to connect, and after a connection that was not accepted.
const (
	LeastPause = 10 * time.Millisecond
	MostPause  = time.Second
)

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
