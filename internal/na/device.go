package na

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"cinnabar/internal/admission"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/progress"
)

// Device is an opened RDMA device that has a network. The layer above gets it from the program, because a program that uses no such
// device must not link the packages of devices.
type Device interface {
	// OpenEndpoint opens an endpoint of the device. ctx bounds the opening alone.
	OpenEndpoint(ctx context.Context, cfg DeviceConfig) (Endpoint, error)
}

// DeviceConfig says how an endpoint of a [Device] is opened. The zero value of each field is its default.
type DeviceConfig struct {
	// Address is the address to listen on, with the scheme of the network.
	Address string
	// Subnet is the network in which the endpoint's address lies; the zero value: any.
	Subnet netip.Prefix
	// Firewalled makes an endpoint that refuses the connection requests of peers.
	Firewalled bool
	// Listen says that peers may send requests.
	Listen bool
	// Handler takes the requests.
	Handler Handler
	// Logger logs peers that break the protocol and, at Debug, connections. Nil discards.
	Logger *slog.Logger
	// Progress decides how long goroutines poll the device before they park; nil: the default of the network.
	Progress *progress.Policy
	// MaxRequest and MaxResponse are the sizes of whole messages in bytes.
	MaxRequest, MaxResponse int
	// DialTimeout bounds an attempt to connect. DialRetry is the time for which the network redials a host that refuses connections.
	DialTimeout, DialRetry time.Duration
	// Resolver resolves the names of peers' hosts; nil: net.DefaultResolver.
	Resolver *net.Resolver
	// RegCacheBytes is the number of bytes of slices that stay registered with the device for further transfers; 0: the default of the
	// network, negative: none.
	RegCacheBytes int64
	// KeepAlive is the time after which a silent host counts as dead. SendTimeout is the time after which a connection counts as lost because
	// the peer has not received the messages on it. Each is 0 for its default, and negative for no limit.
	KeepAlive, SendTimeout time.Duration
	// LateAccess is the time for which the network keeps closed memory for the servers of given-up calls ([LateServer]); 0: the default of
	// the network; negative: it keeps none.
	LateAccess time.Duration
	// Admit accepts or refuses the peers that connect; nil: it accepts all.
	Admit *admission.Gate
	// Quota counts the resources that each remote host holds; nil: a Book without limits.
	Quota *hostquota.Book
	// Audit counts and logs connections and refusals; nil: a Trail of its own, on Logger.
	Audit *audit.Trail
}
