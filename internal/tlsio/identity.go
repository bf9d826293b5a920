package tlsio

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
)

// Identity is the certificate of the peer of a connection. The zero Identity is that of a peer without a certificate.
type Identity struct {
	cert     *x509.Certificate
	between  []*x509.Certificate // that the peer has sent with it
	verified bool
}

// identify sets the identity after the handshake.
func (c *Conn) identify() {
	s := c.tls.ConnectionState()
	if len(s.PeerCertificates) > 0 {
		c.id = Identity{cert: s.PeerCertificates[0], between: s.PeerCertificates[1:], verified: len(s.VerifiedChains) > 0}
	}
}

// Identity returns the identity of the peer.
func (c *Conn) Identity() Identity { return c.id }

// Verified reports whether the peer has a certificate that was verified against the roots of the configuration.
func (id Identity) Verified() bool { return id.verified }

// Subject returns the subject of the peer's certificate, as "CN=name,O=organization", or an empty string if the peer has none that was
// verified against the roots of the configuration.
func (id Identity) Subject() string {
	if !id.verified {
		return ""
	}
	return id.cert.Subject.String()
}

// Names returns the subject alternative names of the peer's certificate: host names, e-mail addresses, IP addresses and URIs, in this order, each with
// its kind before it, as in "DNS:host.example". It returns none if the peer has no certificate that was verified.
func (id Identity) Names() []string {
	if !id.verified {
		return nil
	}
	var names []string
	for _, n := range id.cert.DNSNames {
		names = append(names, "DNS:"+n)
	}
	for _, n := range id.cert.EmailAddresses {
		names = append(names, "email:"+n)
	}
	for _, ip := range id.cert.IPAddresses {
		names = append(names, "IP:"+ip.String())
	}
	for _, u := range id.cert.URIs {
		names = append(names, "URI:"+u.String())
	}
	return names
}

// oidNames is the identifier of the extension with the subject alternative names (RFC 5280, section 4.2.1.6).
var oidNames = asn1.ObjectIdentifier{2, 5, 29, 17}

// Same reports whether both certificates belong to the same peer, or both peers have none. Two certificates belong to the same peer if they are equal, or if both
// were verified and have the same subject and the same subject alternative names. The names in a certificate that was not verified prove
// nothing, because its owner has chosen them, and neither does a certificate without names.
func (id Identity) Same(other Identity) bool {
	switch {
	case id.cert == nil || other.cert == nil:
		return id.cert == other.cert
	case id.cert.Equal(other.cert):
		return true
	}
	return id.verified && other.verified && id.hasNames() &&
		bytes.Equal(id.cert.RawSubject, other.cert.RawSubject) && bytes.Equal(id.names(), other.names())
}

// hasNames reports whether the certificate has a subject or subject alternative names.
func (id Identity) hasNames() bool { return len(id.cert.Subject.Names) > 0 || len(id.names()) > 0 }

// names returns the subject alternative names as the certificate has them.
func (id Identity) names() []byte {
	for _, e := range id.cert.Extensions {
		if e.Id.Equal(oidNames) {
			return e.Value
		}
	}
	return nil
}

// MayServe reports whether a client with configuration cfg accepts the certificate as that of a server. name is the host name or address
// of the server if cfg has no ServerName. A configuration that replaces the check by one of its own accepts no certificate here.
func (id Identity) MayServe(cfg *tls.Config, name string) bool {
	if cfg.InsecureSkipVerify {
		return cfg.VerifyPeerCertificate == nil && cfg.VerifyConnection == nil
	}
	if id.cert == nil || cfg.VerifyPeerCertificate != nil || cfg.VerifyConnection != nil {
		return false
	}
	if cfg.ServerName != "" {
		name = cfg.ServerName
	}
	opts := x509.VerifyOptions{Roots: cfg.RootCAs, DNSName: name, Intermediates: x509.NewCertPool()}
	if cfg.Time != nil {
		opts.CurrentTime = cfg.Time()
	}
	for _, c := range id.between {
		opts.Intermediates.AddCert(c)
	}
	_, err := id.cert.Verify(opts)
	return err == nil
}

// exporterLabel and exporterLen are those of [Conn.Exporter].
const (
	exporterLabel = "EXPORTER-cinnabar-token"
	exporterLen   = 32
)

// Exporter returns a value that both ends of this connection have, and no other connection (RFC 8446, section 7.5).
func (c *Conn) Exporter() ([]byte, error) {
	s := c.tls.ConnectionState()
	return s.ExportKeyingMaterial(exporterLabel, nil, exporterLen)
}
