package tlsio

import (
	"crypto/tls"
	"errors"
)

// protocol is the name by which two ends without Config.NextProtos agree on the protocol inside TLS (ALPN, RFC 7301), so that an attacker
// cannot pass a connection on to a server of another protocol with the same certificate.
const protocol = "cinnabar-tcp"

// Prepare is [PrepareFor] for the protocol of ofi+tcps.
func Prepare(cfg *tls.Config) (*tls.Config, error) { return PrepareFor(cfg, protocol) }

// PrepareFor returns a copy of cfg for [Client] and [Server]. It enforces TLS 1.3, also for the result of cfg.GetConfigForClient, and turns off
// the resumption of sessions. If cfg has no NextProtos, both ends must agree on protocol. PrepareFor returns an error if cfg excludes TLS 1.3.
func PrepareFor(cfg *tls.Config, protocol string) (*tls.Config, error) {
	if cfg == nil {
		return nil, errors.New("no TLS configuration is given")
	}
	if cfg.MaxVersion != 0 && cfg.MaxVersion < tls.VersionTLS13 {
		return nil, errors.New("the TLS configuration has a MaxVersion below TLS 1.3, and no earlier version is supported")
	}
	c := cfg.Clone()
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled, c.ClientSessionCache = true, nil
	c.DynamicRecordSizingDisabled = true // because the first messages of a connection would become several records each
	if len(c.NextProtos) == 0 {
		c.NextProtos = []string{protocol}
	}
	if choose := cfg.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if chosen == nil || err != nil {
				return nil, err
			}
			return PrepareFor(chosen, protocol)
		}
	}
	return c, nil
}

// CanServe reports whether cfg has a certificate, or a function that returns one.
func CanServe(cfg *tls.Config) bool {
	return len(cfg.Certificates) > 0 || cfg.GetCertificate != nil || cfg.GetConfigForClient != nil
}
