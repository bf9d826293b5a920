// Package identity has the types by which processes authenticate each other: the identity of a peer, tokens, and certificates that are read
// from files.
//
// A [Peer] is the identity of a peer as far as it was proven. The handler of a request reads it from cinnabar.InfoFrom, and Config.Admit
// receives it before the engine accepts a connection:
//
//	cfg.Admit = func(_ context.Context, p identity.Peer) error {
//		if p.Kind != identity.Certificate {
//			return errors.New("a certificate is required")
//		}
//		return nil
//	}
//
// A [Token] is a secret that several processes share. The two ends of a connection prove to each other that they have it, and neither sends it.
//
// A [Certificates] holds the certificate, the key and the authorities of a TLS configuration, and reads their files again on demand:
//
//	certs, err := identity.LoadCertificates(identity.Files{Certificate: "cert.pem", Key: "key.pem", Authorities: "ca.pem"})
//	...
//	cfg := &cinnabar.Config{TLS: certs.Config()}
//	...
//	err = certs.Reload() // after an error the old contents stay in use
//
// Package authz allows or refuses requests by these identities.
package identity
