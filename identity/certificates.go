package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxPEM bounds a file with certificates or a key in bytes.
const maxPEM = 4 << 20

// Files are the files of a [Certificates], in PEM.
type Files struct {
	// Certificate holds the certificate of this process, followed by the intermediate certificates, and Key its private key. Both may be
	// empty for a client that has no certificate. On Unix Key must not be readable for all users, nor writable for its group.
	Certificate, Key string
	// Authorities holds the certificates of the authorities that may have issued the certificates of peers. If it is empty, a client accepts
	// the authorities of the system, and a server asks its clients for no certificate. A certificate in it that cannot be read is an error.
	Authorities string
	// ServerName is the name that the certificates of dialed servers must have; empty: the name or address by which each was looked up.
	ServerName string
}

// Certificates is the contents of [Files]. Its methods are safe for concurrent use.
type Certificates struct {
	files Files

	reload  sync.Mutex // held while the files are read
	current atomic.Pointer[material]
}

// material is the contents of the files at one time.
type material struct {
	cert  *tls.Certificate // nil: none
	roots *x509.CertPool   // nil: those of the system
}

// LoadCertificates reads the files. It returns an error if one is missing or malformed, if the key does not belong to the certificate, or if
// the certificate has expired.
func LoadCertificates(files Files) (*Certificates, error) {
	c := &Certificates{files: files}
	return c, c.Reload()
}

// Reload reads the files again. Connections that begin afterwards use the new contents; those that live keep their certificates. After an error the old
// contents stay in use, and the program should log the error.
func (c *Certificates) Reload() error {
	c.reload.Lock()
	defer c.reload.Unlock()
	m, err := c.files.read(time.Now())
	if err != nil {
		return err
	}
	c.current.Store(m)
	return nil
}

func (f *Files) read(now time.Time) (*material, error) {
	m := &material{}
	if (f.Certificate == "") != (f.Key == "") {
		return nil, errors.New("a certificate and its key belong together: give both files or none")
	}
	if f.Certificate != "" {
		cert, err := f.readCertificate(now)
		if err != nil {
			return nil, err
		}
		m.cert = cert
	}
	if f.Authorities != "" {
		text, err := readPEM(f.Authorities, false)
		if err != nil {
			return nil, err
		}
		if m.roots, err = parseAuthorities(text); err != nil {
			return nil, fmt.Errorf("%s %w", f.Authorities, err)
		}
	}
	return m, nil
}

// Starts of the lines that enclose a block of PEM.
const (
	pemBegin = "-----BEGIN "
	pemEnd   = "-----END "
)

// parseAuthorities returns the certificates in text. A certificate that cannot be read is an error, because a pool without it would refuse the peers
// of that authority without a word. Text outside of blocks, and blocks of other types, have no meaning.
func parseAuthorities(text []byte) (*x509.CertPool, error) {
	pool, count := x509.NewCertPool(), 0
	for number := 1; len(text) > 0; number++ {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		line = bytes.TrimLeft(line, " \t")
		if bytes.HasPrefix(line, []byte(pemEnd)) {
			return nil, fmt.Errorf("has in line %d the end of a block that does not begin; replace the block or remove it", number)
		}
		if !bytes.HasPrefix(line, []byte(pemBegin)) {
			text = rest
			continue
		}
		block, after := pem.Decode(text)
		if block == nil || bytes.Count(text[:len(text)-len(after)], []byte(pemBegin)) != 1 { // Decode skips what it cannot read
			return nil, fmt.Errorf("has in line %d a block that is not PEM: its end is missing, or a character is no base64; replace the block or remove it", number)
		}
		switch {
		case block.Type == "CERTIFICATE" && len(block.Headers) == 0:
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("has in line %d a certificate that cannot be read: %w; replace it or remove it", number, err)
			}
			pool.AddCert(cert)
			count++
		case strings.HasSuffix(block.Type, "CERTIFICATE"):
			return nil, fmt.Errorf("has in line %d a block %q, or one with headers; write it as CERTIFICATE, with openssl x509 for example", number, block.Type)
		}
		number += bytes.Count(text[:len(text)-len(after)], []byte("\n")) - 1
		text = after
	}
	if count == 0 {
		return nil, errors.New("holds no certificate in PEM")
	}
	return pool, nil
}

// readCertificate reads the certificate and its key.
func (f *Files) readCertificate(now time.Time) (*tls.Certificate, error) {
	text, err := readPEM(f.Certificate, false)
	if err != nil {
		return nil, err
	}
	key, err := readPEM(f.Key, true)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(text, key) // compares the public keys of the two
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.Certificate, f.Key, err)
	}
	if now.After(cert.Leaf.NotAfter) {
		return nil, fmt.Errorf("certificate %s expired at %s", f.Certificate, cert.Leaf.NotAfter.Format(time.RFC3339))
	}
	return &cert, nil
}

// readPEM reads a file of at most maxPEM bytes.
func readPEM(path string, secret bool) ([]byte, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if secret {
		if err := private(path, info); err != nil {
			return nil, err
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxPEM+1))
	if err == nil && len(text) > maxPEM {
		err = fmt.Errorf("%s has more than %d bytes", path, maxPEM)
	}
	return text, err
}

// errNoCertificate is the error of a server's handshake without a certificate.
var errNoCertificate = errors.New("this process has no certificate, which a server needs")

// Config returns a TLS configuration for Config.TLS of an engine. Each connection that a peer makes afterwards uses the contents that the latest
// successful Reload has read. With Authorities a server requires of its clients a certificate of one of them. The authorities for
// connections that this process makes are fixed in a TLS configuration, so Config.DialTLS needs [Certificates.Dial].
func (c *Certificates) Config() *tls.Config {
	cfg := c.base()
	if c.files.Certificate != "" {
		cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.base(), nil }
	}
	return cfg
}

// Dial returns the configuration for the next connection that this process makes. It is a function for Config.DialTLS of an engine.
func (c *Certificates) Dial() (*tls.Config, error) { return c.base(), nil }

// base returns a configuration with the authorities that were read last.
func (c *Certificates) base() *tls.Config {
	m := c.current.Load()
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: c.files.ServerName, RootCAs: m.roots}
	if c.files.Certificate != "" {
		cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.certificate() }
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.certificate() }
	}
	if m.roots != nil {
		cfg.ClientCAs, cfg.ClientAuth = m.roots, tls.RequireAndVerifyClientCert
	}
	return cfg
}

func (c *Certificates) certificate() (*tls.Certificate, error) {
	if cert := c.current.Load().cert; cert != nil {
		return cert, nil
	}
	return nil, errNoCertificate
}
