// Package webstream carries net/http over RDMA: the connections of a server and a client are streams of package rstream on a software device with
// TLS. net/http knows nothing of it. The device encrypts, and proves both ends to each other by certificates, so the URLs are those of http and
// not of https.
//
//	dev, err := webstream.Open("cert.pem", "key.pem", "ca.pem")
//	l, err := rstream.Listen(dev, addr)
//	err = http.Serve(l, handler)                         // the server
//	resp, err := webstream.Client(dev).Get("http://127.0.0.1:8080/") // the client
package webstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"cinnabar/identity"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rstream"
)

// Open opens a software device whose connections are inside TLS 1.3. The files are in PEM: the certificate of this process, its key, and the
// authorities of the peers' certificates, which a server requires of its clients. The caller closes the device after all that uses it.
func Open(certificate, key, authorities string) (*verbs.Device, error) {
	certs, err := identity.LoadCertificates(identity.Files{Certificate: certificate, Key: key, Authorities: authorities})
	if err != nil {
		return nil, err
	}
	return iwarp.Open(iwarp.Config{TLS: certs.Config(), DialTLS: certs.Dial})
}

// Client returns a client whose connections are streams on dev. The URLs have the IP address and the port of the server, which must be in the
// server's certificate. The caller calls CloseIdleConnections before it closes the device.
func Client(dev *verbs.Device) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		at, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, fmt.Errorf("the device dials IP addresses, and %q is none: %w", addr, err)
		}
		return rstream.Dial(ctx, dev, at)
	}}}
}

// Greet is a handler that greets the caller by the name in the query.
func Greet(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if name == "" {
		http.Error(w, "the query needs a name", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, "hello, %s\n", name) // the client may be gone
}
