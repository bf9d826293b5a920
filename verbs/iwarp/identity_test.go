package iwarp_test

import (
	"crypto/tls"
	"net/netip"
	"testing"

	"cinnabar/identity"
	"cinnabar/internal/tlstest"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestIdentity reads the identity of the peer from the request and from both ends of the connection.
// parity: A01 A02
func TestIdentity(t *testing.T) {
	ca, tok := tlstest.NewCA(t), identity.NewToken()
	server, client := ca.Local(t), ca.Mutual(t, tlstest.Certificate{Name: "anna"})
	optional := server.Clone()
	optional.ClientAuth = tls.NoClientCert
	server.ServerName, client.ServerName = "127.0.0.1", "127.0.0.1"
	for _, tt := range []struct {
		name                   string
		server, client         iwarp.Config
		serverSees, clientSees string // of the other one
	}{
		{"plain", iwarp.Config{}, iwarp.Config{}, "addr:127.0.0.1", "addr:127.0.0.1"},
		{"token", iwarp.Config{Token: tok}, iwarp.Config{Token: tok}, "addr:127.0.0.1 token", "addr:127.0.0.1 token"},
		{"TLS", iwarp.Config{TLS: server}, iwarp.Config{TLS: client}, "subject:CN=anna addr:127.0.0.1", "subject:CN=local"},
		{"TLS and token", iwarp.Config{TLS: server, Token: tok}, iwarp.Config{TLS: client, Token: tok}, "subject:CN=anna addr:127.0.0.1 token", "subject:CN=local"},
		{"client that is not asked for a certificate", iwarp.Config{TLS: optional}, iwarp.Config{TLS: client}, "addr:127.0.0.1", "subject:CN=local"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := newSide(t, tt.server, nil), newSide(t, tt.client, nil)
			l, err := verbs.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
			if err != nil {
				t.Fatal(err)
			}
			closeAtEnd(t, l.Close)
			type accepted struct {
				request, conn identity.Peer
				err           error
			}
			done := make(chan accepted, 1)
			go func() {
				var a accepted
				req, err := l.Accept(testContext(t))
				if err == nil {
					a.request = req.Identity()
					var conn *verbs.Conn
					if conn, err = req.Accept(testContext(t), s.qp, verbs.ConnParam{}); err == nil {
						a.conn = conn.Identity()
					}
				}
				a.err = err
				done <- a
			}()
			conn, err := verbs.Dial(testContext(t), c.qp, l.Addr(), verbs.ConnParam{})
			if err != nil {
				t.Fatal(err)
			}
			a := <-done
			if a.err != nil || a.request.String() != tt.serverSees || a.conn.String() != tt.serverSees {
				t.Errorf("the server sees %v in the request and %v in the connection, with %v; want %s", a.request, a.conn, a.err, tt.serverSees)
			}
			got := conn.Identity()
			if text := got.String(); len(text) < len(tt.clientSees) || text[:len(tt.clientSees)] != tt.clientSees || got.Token != !tt.client.Token.IsZero() {
				t.Errorf("the client sees %v, want %s", got, tt.clientSees)
			}
		})
	}
}
