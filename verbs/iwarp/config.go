package iwarp

import (
	"crypto/tls"
	"log/slog"
	"math"
	"net"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/tlsio"
	"cinnabar/verbs"
)

// Config configures a device. The zero value is ready for use.
type Config struct {
	// Name is the device's name in listings; "" is "cinnabar0".
	Name string
	// Logger receives events outside of any call (handshakes that fail,
	// Terminates); nil discards it.
	Logger *slog.Logger

	// TLS puts every connection inside TLS 1.3, with MPA's frames as its payload; nil is no TLS. The peer's device needs TLS too: each refuses a
	// peer without it. A device that listens needs a certificate, and requires one of its clients with ClientAuth:
	// tls.RequireAndVerifyClientCert. A dialed server must have a certificate with TLS.ServerName, or with the IP address that was dialed if
	// that is empty. The device asks for no CRC then, because TLS protects all bytes. [Open] copies TLS.
	TLS *tls.Config
	// DialTLS returns the configuration in the place of TLS for a connection that this side dials, because the authorities in a tls.Config
	// cannot change; nil: it is TLS. See [identity.Certificates].
	DialTLS func() (*tls.Config, error)
	// Token is a secret that both ends of every connection prove to each other; the zero Token is none. Both ends need the same one, or none. Without TLS it stops
	// strangers, not a man in the middle.
	Token identity.Token

	// NoCRC stops asking for MPA's CRC32C. It is in use all the same when the
	// peer asks for it. TCP's own checksum is weak: keep the CRC on except on
	// links that do better themselves (loopback). With the CRC neither the owner nor
	// another peer may change memory while a frame is received into it, because the CRC
	// could then be wrong, which ends the connection.
	NoCRC bool
	// NoLocalCRC has the effect of NoCRC on connections within this host, which have the same IP address, or loopback addresses, at both ends.
	// The bytes of such a connection stay in the memory of the machine, unless a program forwards loopback ports to another host, as ssh -L
	// does. Both ends of the connection then have loopback addresses, and only the forwarding program protects the bytes on the network.
	NoLocalCRC bool
	// NoImmediates and NoAtomics switch the extensions of RFC 7306 off, which
	// nothing on the wire negotiates: a peer that lacks them ends the connection
	// with a Terminate for an unknown opcode.
	NoImmediates bool
	NoAtomics    bool
	// ConfirmWrites makes a signaled write or send complete only after a
	// zero-length read behind it has been answered, so that its status is exact:
	// iWARP itself acknowledges nothing. It costs a round trip per signaled
	// request and needs outbound reads (ORD of at least 1).
	ConfirmWrites bool
	// LockMemory locks the pages of registered memory (mlock), as a driver of
	// real hardware does, and so makes registration subject to RLIMIT_MEMLOCK.
	LockMemory bool

	// Listener is a listener of TCP, such as a socket that systemd has opened (package systemd). The first verbs.Listen at its address
	// takes connections from it, and the verbs.Listener closes it; nil: the device opens all sockets.
	Listener *net.TCPListener

	// Revision is the MPA revision that the active side asks for: 2 (RFC 6581), which 0
	// stands for, or 1 (RFC 5044). The passive side takes both.
	Revision int
	// NoPeerToPeer stops the active side from offering peer-to-peer set-up
	// (RFC 6581), by which it sends the first message itself. Then the passive
	// side's messages wait until the active side's program sends one.
	NoPeerToPeer bool
	// Depth is how many inbound and how many outbound reads and atomics one
	// connection may have outstanding unless its ConnParam says otherwise;
	// 0 is 32, at most 1024.
	Depth int
	// MaxULPDU bounds the payload of one frame in bytes, headers included; 0 fits
	// frames to TCP segments. At least 128, at most 64768.
	MaxULPDU int
	// HoldLimit bounds, in bytes per connection, the messages that wait for a receive to
	// be posted; beyond it the connection is not read until then. 0 is 4 MiB.
	HoldLimit int
	// MaxConnections bounds the connections of the device. 0 is as many as RLIMIT_NOFILE leaves room for. Of it a remote
	// host gets a share (see package documentation). Connections that this side dials count and are not refused.
	MaxConnections int
	// MaxMemory bounds, in bytes, the messages that all connections together hold for want of a receive; beyond a host's
	// share of it the host's connections are not read until receives are posted. MaxMemory also bounds the bytes that are copied after
	// wrong guesses in read responses, up to 512 KiB for each connection. Each system call with guesses
	// takes these bytes from the host's share until it is over. A connection makes no guesses if that share has no room for twice the bytes,
	// because other connections of the host must be able to hold messages. 0 is half of the
	// machine's memory.
	MaxMemory int64
	// DeniedLimit is how many refused accesses to memory a remote host may make in about a minute before its new
	// connections are delayed and then refused, because a host that guesses keys connects anew for each. 0 is 16;
	// a negative value is no limit.
	DeniedLimit int
	// HandshakeTimeout bounds the exchange of MPA frames and the end of a connection;
	// 0 is 10 s. The first 20 bytes of a request must come within 2 s, or within this time if that is less.
	HandshakeTimeout time.Duration
	// UserTimeout is for how long sent data may stay unacknowledged by the peer's TCP, or
	// unsent because the peer does not read, before the connection counts as lost
	// (TCP_USER_TIMEOUT, Linux only). 0 is the system's default, many minutes: a
	// peer that posts no receives is waited for.
	UserTimeout time.Duration
}

// Limits of the software device, in entries unless said otherwise.
const (
	defaultDepth     = 32
	maxDepth         = 1024
	defaultHold      = 4 << 20 // bytes
	defaultHandshake = 10 * time.Second
	requestTimeout   = 2 * time.Second // for the fixed part of a request, because a peer sends it as soon as it has connected
	defaultDenied    = 16              // accesses
	maxQueueWR       = 32768
	maxSGE           = 32
	maxInline        = 4096 // bytes
	maxCQE           = 1 << 20
	maxObjects       = 1 << 20
	maxMessage       = min(1<<31, math.MaxInt) // bytes; max_msg_sz of verbs
	defaultBacklog   = 128
	maxBacklog       = 4096
)

// checked returns c with its defaults filled in.
func (c Config) checked() (Config, error) {
	const op = "open iwarp device"
	if c.Name == "" {
		c.Name = "cinnabar0"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Revision == 0 {
		c.Revision = mpa.Revision2
	}
	if c.Revision != mpa.Revision1 && c.Revision != mpa.Revision2 {
		return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.Revision is %d; MPA has 1 and 2", c.Revision)
	}
	if c.Depth == 0 {
		c.Depth = defaultDepth
	}
	if c.Depth < 0 || c.Depth > maxDepth {
		return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.Depth is %d; 1 to %d are possible", c.Depth, maxDepth)
	}
	if c.MaxULPDU != 0 && (c.MaxULPDU < mpa.MinMULPDU || c.MaxULPDU > mpa.MaxULPDU) {
		return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.MaxULPDU is %d; %d to %d are possible", c.MaxULPDU, mpa.MinMULPDU, mpa.MaxULPDU)
	}
	if c.HoldLimit == 0 {
		c.HoldLimit = defaultHold
	}
	if c.HoldLimit < 0 {
		return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.HoldLimit is %d; it counts bytes", c.HoldLimit)
	}
	if c.MaxConnections < 0 || c.MaxMemory < 0 {
		return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.MaxConnections is %d and MaxMemory is %d; neither may be negative, and 0 is the default of this machine", c.MaxConnections, c.MaxMemory)
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = int(hostquota.Machine().DefaultConnections(connDescriptors))
	}
	if c.MaxMemory == 0 {
		c.MaxMemory = hostquota.Machine().DefaultMemory()
	}
	if c.DeniedLimit == 0 {
		c.DeniedLimit = defaultDenied
	}
	if c.HandshakeTimeout <= 0 {
		c.HandshakeTimeout = defaultHandshake
	}
	if c.TLS != nil {
		prepared, err := tlsio.PrepareFor(c.TLS, tlsProtocol)
		if err != nil {
			return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.TLS: %v", err)
		}
		c.TLS = prepared
	} else if c.DialTLS != nil {
		return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.DialTLS is set without Config.TLS; set both")
	}
	if c.UserTimeout < 0 {
		return c, verbs.Errorf(op, verbs.ErrInvalid, "Config.UserTimeout is %v; 0 is the system's default", c.UserTimeout)
	}
	return c, nil
}
