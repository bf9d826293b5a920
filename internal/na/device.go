package na

import (
	"context"
	"log/slog"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
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
	// Listen says that peers may send requests.
	Listen bool
	// Handler takes the requests.
	Handler Handler
	// Logger logs peers that break the protocol and, at Debug, connections. Nil discards.
	Logger *slog.Logger
	// Spin is for how long a goroutine polls the device without result before it parks; negative: no time.
	Spin time.Duration
	// MaxRequest and MaxResponse are the sizes of whole messages in bytes.
	MaxRequest, MaxResponse int
	// DialTimeout bounds an attempt to connect. DialRetry is for how long a host that refuses connections is dialed again.
	DialTimeout, DialRetry time.Duration
	// Quota counts the resources that each remote host holds; nil: a Book without limits.
	Quota *hostquota.Book
	// Audit counts and logs connections and refusals; nil: a Trail of its own, on Logger.
	Audit *audit.Trail
}
