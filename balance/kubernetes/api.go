package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Bounds of what is read from the API server.
const (
	maxName      = 253         // bytes of a name
	maxVersion   = 1024        // bytes of a resource version
	maxContinue  = 16 << 10    // bytes of the mark of the next page
	maxSlices    = 256         // EndpointSlices of the service
	pageSlices   = 10          // of one page of the list
	maxPages     = 256         // of one list; a server may make pages smaller than asked for
	maxPageBytes = 8 << 20     // of one page
	maxEvent     = 2 << 20     // bytes of one event of a watch
	maxElements  = 1000        // endpoints of a slice, as the API defines
	maxFailure   = 64 << 10    // bytes that are read of the body of an error
	maxMessage   = 512         // bytes of its message that are kept
	maxToken     = 64 << 10    // bytes of the token's file
	maxCA        = 4 << 20     // bytes of the file of certificates
	maxRetry     = time.Minute // that the server may ask for
)

// Times of requests.
const (
	listTime  = 30 * time.Second
	watchTime = 5 * time.Minute  // at the least; the server ends the watch then
	watchOver = 30 * time.Second // after which the client ends it
	idleTime  = 15 * time.Second // before a connection without traffic is probed, and for the answer
)

// bounded is a JSON array with at most maxElements elements, because each element may take many times the memory of its text.
type bounded[T any] []T

// UnmarshalJSON implements [json.Unmarshaler].
func (l *bounded[T]) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	t, err := d.Token()
	if err != nil || t == nil { // null
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("%v in place of an array", t)
	}
	*l = nil
	for d.More() {
		if len(*l) == maxElements {
			return fmt.Errorf("an array has more than %d elements", maxElements)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}

// The objects of the API, as far as they are needed.
type (
	metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	}
	endpointSliceList struct {
		Metadata metadata               `json:"metadata"`
		Items    bounded[endpointSlice] `json:"items"`
	}
	endpointSlice struct {
		Metadata    metadata          `json:"metadata"`
		AddressType string            `json:"addressType"`
		Endpoints   bounded[endpoint] `json:"endpoints"`
		Ports       bounded[port]     `json:"ports"`

		// Of a Status, which the event of an error has in place of a slice.
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	endpoint struct {
		Addresses  bounded[string] `json:"addresses"`
		Conditions struct {
			Ready *bool `json:"ready"` // nil counts as true
		} `json:"conditions"`
	}
	port struct {
		Name     string `json:"name"`
		Port     uint16 `json:"port"`
		Protocol string `json:"protocol"`
	}
	event struct {
		Type   string        `json:"type"`
		Object endpointSlice `json:"object"`
	}
)

// check returns an error if a version or mark is too long to be sent back.
func (m *metadata) check() error {
	if len(m.ResourceVersion) > maxVersion || len(m.Continue) > maxContinue {
		return fmt.Errorf("a resource version of %d bytes, or a mark of %d, is too long", len(m.ResourceVersion), len(m.Continue))
	}
	return nil
}

// status returns the error in the event of an error.
func (s *endpointSlice) status() error { return newStatusError(s.Code, s.Message, 0) }

// statusError is an answer of the API server other than success.
type statusError struct {
	code  int
	text  string
	retry time.Duration // that the server asks for
}

func newStatusError(code int, text string, retry time.Duration) error {
	if len(text) > maxMessage {
		text = text[:maxMessage] + "..."
	}
	err := &statusError{code, strconv.QuoteToASCII(strings.ToValidUTF8(text, "?")), retry}
	if code == http.StatusGone {
		return fmt.Errorf("%w: %w", errExpired, err)
	}
	return err
}

// Error implements error.
func (e *statusError) Error() string {
	return fmt.Sprintf("the API server answers %d %s: %s", e.code, http.StatusText(e.code), e.text)
}

// api makes requests of the API server. One goroutine uses it.
type api struct {
	cfg    *Config
	base   *url.URL // of the slices of the namespace
	client *http.Client
	ca     []byte // of CAFile, for client
}

// close closes the connections.
func (a *api) close() {
	if a.client != nil {
		a.client.CloseIdleConnections()
	}
}

// connect makes the client, and another one if CAFile has changed.
func (a *api) connect() error {
	var ca []byte
	if a.cfg.CAFile != "" {
		var err error
		if ca, err = readFile(a.cfg.CAFile, maxCA); err != nil {
			return fmt.Errorf("Config.CAFile: %w", err)
		}
	}
	if a.client != nil && bytes.Equal(ca, a.ca) {
		return nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.cfg.TLS != nil {
		t = a.cfg.TLS.Clone()
	}
	if a.cfg.CAFile != "" {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(ca) {
			return fmt.Errorf("Config.CAFile: %s has no certificate in PEM", a.cfg.CAFile)
		}
	}
	a.close()
	a.ca = ca
	a.client = &http.Client{
		Transport: &http.Transport{
			DialContext:     (&net.Dialer{Timeout: idleTime, KeepAlive: idleTime}).DialContext,
			TLSClientConfig: t, TLSHandshakeTimeout: idleTime, ResponseHeaderTimeout: listTime, MaxResponseHeaderBytes: maxFailure,
			ForceAttemptHTTP2: true, MaxConnsPerHost: 2, IdleConnTimeout: 2 * listTime,
			HTTP2: &http.HTTP2Config{SendPingTimeout: idleTime, PingTimeout: idleTime},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for this server alone
	}
	return nil
}

// get makes a request. The caller closes the body.
func (a *api) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	if err := a.connect(); err != nil {
		return nil, err
	}
	u := *a.base
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if a.cfg.TokenFile != "" {
		token, err := readFile(a.cfg.TokenFile, maxToken)
		if err != nil {
			return nil, fmt.Errorf("Config.TokenFile: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }() // nothing of it is needed after failure
		return nil, failure(resp)
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		_ = resp.Body.Close() // nothing of it is needed
		return nil, fmt.Errorf("the API server answers with the content type %q", resp.Header.Get("Content-Type"))
	}
	return resp.Body, nil
}

// failure returns the error of an answer other than success.
func failure(resp *http.Response) error {
	var status endpointSlice
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxFailure)) // as much as there is
	if json.Unmarshal(body, &status) != nil || status.Message == "" {
		status.Message = string(body)
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0: none that is understood
	retry := min(maxRetry, time.Duration(min(max(0, seconds), 3600))*time.Second)
	return newStatusError(resp.StatusCode, status.Message, retry)
}

func selector(service string) url.Values {
	return url.Values{"labelSelector": {"kubernetes.io/service-name=" + service}}
}

// list reads a page of the list: the first one, or the one with the mark next.
func (a *api) list(ctx context.Context, service, next string) (*endpointSliceList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	q := selector(service)
	q.Set("limit", strconv.Itoa(pageSlices))
	if next != "" {
		q.Set("continue", next)
	}
	body, err := a.get(ctx, q)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // all that is needed was read
	b, err := io.ReadAll(io.LimitReader(body, maxPageBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxPageBytes {
		return nil, fmt.Errorf("a page of the list has more than %d bytes", maxPageBytes)
	}
	l := &endpointSliceList{}
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("the list cannot be read: %w", err)
	}
	return l, l.Metadata.check()
}

// watch yields the changes after a version, until the server ends the watch. An error is the last value.
func (a *api) watch(ctx context.Context, service, version string) iter.Seq2[*event, error] {
	return func(yield func(*event, error) bool) {
		limit := watchTime + rand.N(watchTime)
		ctx, cancel := context.WithTimeout(ctx, limit+watchOver)
		defer cancel()
		q := selector(service)
		q.Set("watch", "1")
		q.Set("allowWatchBookmarks", "true")
		q.Set("resourceVersion", version)
		q.Set("timeoutSeconds", strconv.Itoa(int(limit.Seconds())))
		body, err := a.get(ctx, q)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = body.Close() }() // the watch is over
		bound := &io.LimitedReader{R: body}
		d := json.NewDecoder(bound)
		for {
			bound.N = maxEvent
			ev := &event{}
			err := d.Decode(ev)
			if err == nil {
				err = ev.Object.Metadata.check()
			}
			switch {
			case bound.N == 0 && err != nil:
				err = fmt.Errorf("an event has more than %d bytes", maxEvent)
			case errors.Is(err, io.EOF):
				return
			}
			if err != nil {
				yield(nil, fmt.Errorf("the watch: %w", err))
				return
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
}

// readFile reads a file of at most limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return b, err
}
