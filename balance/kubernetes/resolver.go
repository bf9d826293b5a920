// Package kubernetes lists the servers of a Service of Kubernetes for [balance.Client]. It reads the Service's EndpointSlices (discovery.k8s.io/v1) from the
// API server and watches them, so a Client learns of a server that comes or goes without waiting for its next Refresh:
//
//	cfg, err := kubernetes.InCluster()
//	cfg.Protocol, cfg.Service, cfg.Port = "ofi+tcp", "store", "rpc"
//	servers, err := kubernetes.New(cfg)
//	defer servers.Close()
//	client, err := balance.New(engine, &balance.Config{Resolver: servers})
//
// The account of the program needs the verbs "list" and "watch" for "endpointslices" in the API group "discovery.k8s.io" of the namespace.
//
// The package uses net/http and no client library. It bounds all that it reads from the server.
package kubernetes

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cinnabar/balance"
	"cinnabar/codes"
)

// Config is the configuration of a Resolver.
type Config struct {
	Protocol string // of the servers' addresses: "ofi+tcp"; must not be empty
	Service  string // must not be empty
	// Namespace is that of the Service; "": "default".
	Namespace string
	// Port is the name or the number of the port, as the EndpointSlices have it; "": the only port. A slice without the port is left out.
	Port string

	Server string // the URL of the API server: "https://host:port"
	// TokenFile has the bearer token, which is read again for each request, because the cluster replaces it; "": none. A token needs https.
	TokenFile string
	// CAFile has the certificates in PEM by which the server's certificate is verified. It is read again after each failure; "": those of the system.
	CAFile string
	// TLS has further settings, such as the certificate of the client; nil: none.
	TLS *tls.Config

	Logger *slog.Logger // of failures; nil: none are logged
}

// account is the folder in which a Pod finds the credentials of its account.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster returns the Server, the files and the Namespace that the environment of a Pod names. It is the only function of the package that reads the
// environment.
func InCluster() (*Config, error) { return inCluster(os.Getenv, account) }

func inCluster(getenv func(string) string, dir string) (*Config, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fmt.Errorf("kubernetes: %w: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, so this is no Pod", codes.InvalidArg)
	}
	namespace, err := readFile(path.Join(dir, "namespace"), maxName)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: the namespace of the Pod: %w", err)
	}
	return &Config{
		Server: "https://" + net.JoinHostPort(host, port), Namespace: strings.TrimSpace(string(namespace)),
		TokenFile: path.Join(dir, "token"), CAFile: path.Join(dir, "ca.crt"),
	}, nil
}

// Resolver is a [balance.Notifier] with the ready endpoints of a Service. It has a goroutine and a connection to the API server until Close. While the API
// server does not answer, Resolve returns the last servers and an error, so that a Client keeps those that it has.
type Resolver struct {
	balance.Feed

	cfg    Config
	log    *slog.Logger
	api    api
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// Only the goroutine uses these.
	slices  map[string][]balance.Address // the servers of each EndpointSlice, by its name
	version string                       // resourceVersion of the last list or event
	pause   time.Duration                // after the last failure; 0: there was none
}

// Times of the goroutine.
const (
	firstPause = 200 * time.Millisecond // before the first repetition
	lastPause  = 30 * time.Second
)

// New returns a Resolver. It checks cfg, and does not wait for the API server.
func New(cfg *Config) (*Resolver, error) {
	r, err := newResolver(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wg.Go(func() { r.run(ctx) })
	return r, nil
}

func newResolver(cfg *Config) (*Resolver, error) {
	if cfg == nil {
		return nil, fmt.Errorf("kubernetes: %w: no Config given", codes.InvalidArg)
	}
	r := &Resolver{cfg: *cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), slices: map[string][]balance.Address{}}
	r.cfg.Namespace = cmp.Or(cfg.Namespace, "default")
	server, err := url.Parse(cfg.Server)
	switch {
	case err != nil:
		return nil, fmt.Errorf("kubernetes: %w: Server: %w", codes.InvalidArg, err)
	case server.Host == "" || server.Scheme != "https" && server.Scheme != "http":
		return nil, fmt.Errorf("kubernetes: %w: Server is %q; it must be a URL of https, or of http", codes.InvalidArg, cfg.Server)
	case server.Scheme == "http" && cfg.TokenFile != "":
		return nil, fmt.Errorf("kubernetes: %w: Server is %q, and the token would be sent in the clear; use https, or no TokenFile", codes.InvalidArg, cfg.Server)
	case cfg.Protocol == "":
		return nil, fmt.Errorf("kubernetes: %w: Protocol is empty; \"ofi+tcp\" is one", codes.InvalidArg)
	case !isLabel(cfg.Service):
		return nil, fmt.Errorf("kubernetes: %w: Service is %q, which is no name of a Service", codes.InvalidArg, cfg.Service)
	case !isLabel(r.cfg.Namespace):
		return nil, fmt.Errorf("kubernetes: %w: Namespace is %q, which is no name of one", codes.InvalidArg, cfg.Namespace)
	}
	r.api = api{cfg: &r.cfg, base: server.JoinPath("apis/discovery.k8s.io/v1/namespaces", r.cfg.Namespace, "endpointslices")}
	return r, nil
}

// isLabel reports whether s is a label of the DNS, as names of Services and namespaces are (RFC 1123).
func isLabel(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case c == '-' && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= 63
}

// Close ends the goroutine and the connection, and waits for them. Clients that use r must be closed before. Close always returns nil.
func (r *Resolver) Close() error {
	r.cancel()
	r.wg.Wait()
	return nil
}

// errExpired is the error of a resourceVersion that the API server does not have any more. The remedy is a new list.
var errExpired = errors.New("the resource version has expired")

// run lists the slices and then watches them, again after each failure, until ctx ends.
func (r *Resolver) run(ctx context.Context) {
	defer r.api.close()
	for ctx.Err() == nil {
		err := r.list(ctx)
		for err == nil {
			err = r.watch(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errExpired) || r.pause > 0 { // the first expiry is normal
			r.log.Warn("the endpoints of the service cannot be read", "service", r.cfg.Namespace+"/"+r.cfg.Service, "err", err)
			r.Set(r.servers(), fmt.Errorf("kubernetes: the endpoints of service %s in namespace %s: %w", r.cfg.Service, r.cfg.Namespace, err))
		}
		if !r.wait(ctx, err) {
			return
		}
	}
}

// wait waits after a failure, longer each time, or as long as the server asks for. It returns false if ctx has ended.
func (r *Resolver) wait(ctx context.Context, err error) bool {
	r.pause = min(lastPause, max(firstPause, 2*r.pause))
	d := r.pause/2 + rand.N(r.pause/2+1)
	if s, ok := errors.AsType[*statusError](err); ok {
		d = max(d, s.retry)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// list replaces all slices by those of the API server.
func (r *Resolver) list(ctx context.Context) error {
	list := map[string][]balance.Address{}
	version, next := "", ""
	for page := 0; ; page++ {
		if page == maxPages {
			return fmt.Errorf("the list has more than %d pages", maxPages)
		}
		l, err := r.api.list(ctx, r.cfg.Service, next)
		if err != nil {
			return err
		}
		for i := range l.Items {
			if err := r.put(list, &l.Items[i]); err != nil {
				return err
			}
		}
		version, next = l.Metadata.ResourceVersion, l.Metadata.Continue
		if next == "" {
			break
		}
	}
	r.slices, r.version = list, version
	r.publish()
	return nil
}

// publish makes Resolve return the servers.
func (r *Resolver) publish() { r.Set(r.servers(), nil) }

// put puts the servers of a slice into list.
func (r *Resolver) put(list map[string][]balance.Address, s *endpointSlice) error {
	name := s.Metadata.Name
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the name of an EndpointSlice has %d bytes, at most %d", len(name), maxName)
	}
	if _, known := list[name]; !known && len(list) >= maxSlices {
		return fmt.Errorf("the service has more than %d EndpointSlices", maxSlices)
	}
	list[name] = r.serversOf(s)
	return nil
}

// serversOf returns the servers of a slice. Endpoints that are not ready, and those with an address that is not valid, are left out.
func (r *Resolver) serversOf(s *endpointSlice) (list []balance.Address) {
	port, ok := s.port(r.cfg.Port)
	if !ok {
		if len(s.Endpoints) > 0 {
			r.log.Warn("an EndpointSlice does not have the port", "slice", s.Metadata.Name, "port", r.cfg.Port)
		}
		return nil
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
			continue
		}
		host, ok := s.host(e.Addresses[0]) // further addresses have no meaning
		if !ok {
			r.log.Warn("an EndpointSlice has an address that is not valid", "slice", s.Metadata.Name, "address", strconv.QuoteToASCII(e.Addresses[0]))
			continue
		}
		list = append(list, balance.Address{Addr: r.cfg.Protocol + "://" + net.JoinHostPort(host, strconv.Itoa(int(port)))})
	}
	return list
}

// port returns the port with a name or number, or the only port if want is empty.
func (s *endpointSlice) port(want string) (uint16, bool) {
	for _, p := range s.Ports {
		fits := p.Name == want || strconv.Itoa(int(p.Port)) == want
		if want == "" {
			fits = len(s.Ports) == 1
		}
		if fits && p.Port != 0 && (p.Protocol == "" || p.Protocol == "TCP") {
			return p.Port, true
		}
	}
	return 0, false
}

// host returns an address of the slice in the form for an address of a server, and false if it is not valid.
func (s *endpointSlice) host(addr string) (string, bool) {
	if s.AddressType == "FQDN" {
		for label := range strings.SplitSeq(addr, ".") {
			if !isLabel(label) {
				return "", false
			}
		}
		return addr, len(addr) <= maxName
	}
	a, err := netip.ParseAddr(addr)
	ok := err == nil && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && a.Is6() == (s.AddressType == "IPv6")
	return a.String(), ok
}

// servers returns the servers of all slices, in the order of their addresses and each once.
func (r *Resolver) servers() []balance.Address {
	var list []balance.Address
	for _, servers := range r.slices {
		list = append(list, servers...)
	}
	slices.SortFunc(list, func(a, b balance.Address) int { return strings.Compare(a.Addr, b.Addr) })
	return slices.Clip(slices.CompactFunc(list, func(a, b balance.Address) bool { return a.Addr == b.Addr }))
}

// watch applies the changes of the slices until the API server ends the watch, which it does every few minutes, or with an error.
func (r *Resolver) watch(ctx context.Context) error {
	began := time.Now()
	events, n := r.api.watch(ctx, r.cfg.Service, r.version), 0
	for ev, err := range events {
		if err != nil {
			return err
		}
		n++
		if err := r.apply(ev); err != nil {
			return err
		}
	}
	if n == 0 && time.Since(began) < firstPause {
		return errors.New("the API server ends the watch at once")
	}
	r.pause = 0
	return nil
}

// apply applies a change.
func (r *Resolver) apply(ev *event) error {
	s := &ev.Object
	switch ev.Type {
	case "ERROR":
		return s.status()
	case "BOOKMARK":
	case "ADDED", "MODIFIED":
		if err := r.put(r.slices, s); err != nil {
			return err
		}
	case "DELETED":
		delete(r.slices, s.Metadata.Name)
	default:
		return fmt.Errorf("an event has the type %q, which is unknown", ev.Type)
	}
	if len(s.Metadata.ResourceVersion) > 0 {
		r.version = s.Metadata.ResourceVersion
	}
	r.pause = 0
	r.publish()
	return nil
}

var _ balance.Notifier = (*Resolver)(nil)
