// Package debugpage shows the state of a program's engines in a browser, in the manner of net/http/pprof: calls that run or wait,
// the latency of each RPC as a histogram, connections, and exposed memory. The pages are plain HTML and SVG, work without scripts, and
// load themselves again every two seconds.
//
//	page := debugpage.New(nil)
//	cfg := &cinnabar.Config{}
//	page.Install(cfg)
//	engine, err := cinnabar.Listen(ctx, "ofi+tcp://", cfg)
//	...
//	http.Handle("/cinnabar", page)
//	go http.ListenAndServe("127.0.0.1:6060", nil)
//
// A page only reads. It shows no arguments, results, keys or tokens, but it does show addresses of peers, names of RPCs, and places in
// the program, and it asks for no password: bind it to a loopback address, as above.
//
// # Limits
//
// A [Page] answers requests whose Host is an address or localhost, and those for [Config.Hosts], because a foreign page in the browser
// of a user could otherwise read it through a name that resolves to a loopback address. It answers GET and HEAD. One remote host gets 10
// pages a second, and all hosts together 40. The page takes a snapshot of the engines at most four times a second. Each table has at most [Config.Rows]
// rows. The histograms have a fixed size: 128 RPCs of each side have one of their own, and the others share one.
//
// All functions are safe for concurrent use.
package debugpage

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"cinnabar"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/querylimit"
	"cinnabar/stats"
)

// Config has the settings of a [Page]. The zero value is good for a program on a developer's machine.
type Config struct {
	// Hosts are the names of hosts, without ports, by which browsers may reach the page, beside localhost and all IP addresses.
	Hosts []string
	// Rows is the largest number of rows of a table; 0 stands for [stats.DefaultRows], and more than [stats.MostRows] for that.
	Rows int
	// Refresh is the time after which a page loads itself again; 0: 2 seconds, negative: never. It counts in whole seconds.
	Refresh time.Duration
}

const (
	defaultRefresh = 2 * time.Second
	mostRefresh    = 3600 // seconds
	maxEngines     = 16   // engines on one page
	freshFor       = 250 * time.Millisecond
	maxText        = 160 // runes of a text of a peer
)

// Page is an [http.Handler] that shows engines.
type Page struct {
	hosts   []string
	rows    int
	refresh int // seconds
	limiter *querylimit.Limiter
	mon     monitor

	mu sync.Mutex
	// +checklocks:mu
	engines []*cinnabar.Engine
	// +checklocks:mu
	seen *seen
}

// seen holds the snapshots of the engines from one time.
type seen struct {
	taken   time.Time
	engines []stats.State
	more    int // engines that are not in the list
}

// New returns a Page without engines. A nil cfg is the zero Config.
func New(cfg *Config) *Page {
	if cfg == nil {
		cfg = &Config{}
	}
	p := &Page{rows: stats.Rows(max(cfg.Rows, 0)), limiter: querylimit.New()}
	for _, h := range cfg.Hosts {
		p.hosts = append(p.hosts, hostName(h))
	}
	switch {
	case cfg.Refresh == 0:
		p.refresh = int(defaultRefresh / time.Second)
	case cfg.Refresh > 0:
		p.refresh = int(max(1, min(cfg.Refresh/time.Second, mostRefresh)))
	}
	return p
}

// Install makes engines that are opened with cfg report the latency of their RPCs to the page, and appear on it until they close. It
// changes Monitor and Setup of cfg, and keeps those that cfg has.
func (p *Page) Install(cfg *cinnabar.Config) {
	if next := cfg.Monitor; next != nil {
		cfg.Monitor = &chain{&p.mon, next}
	} else {
		cfg.Monitor = &p.mon
	}
	next := cfg.Setup
	cfg.Setup = func(e *cinnabar.Engine) error {
		if next != nil {
			if err := next(e); err != nil {
				return err
			}
		}
		p.Watch(e)
		return nil
	}
}

// Watch adds an engine to the page until the engine closes. The page has no histograms of an engine that was opened without
// [Page.Install].
func (p *Page) Watch(e *cinnabar.Engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked()
	if !slices.Contains(p.engines, e) {
		p.engines = append(p.engines, e)
	}
	p.seen = nil
}

// forgetLocked removes the engines that are closed.
//
// +checklocks:p.mu
func (p *Page) forgetLocked() {
	p.engines = slices.DeleteFunc(p.engines, func(e *cinnabar.Engine) bool {
		select {
		case <-e.Done():
			return true
		default:
			return false
		}
	})
}

// Latencies returns the latencies of all RPCs since Install, the RPCs with most calls first.
func (p *Page) Latencies() []*Latency { return p.mon.latencies() }

// look returns snapshots of the engines that are at most freshFor old.
func (p *Page) look() *seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen != nil && time.Since(p.seen.taken) < freshFor {
		return p.seen
	}
	p.forgetLocked()
	s := &seen{taken: time.Now(), more: max(0, len(p.engines)-maxEngines)}
	for _, e := range p.engines[:min(len(p.engines), maxEngines)] {
		s.engines = append(s.engines, e.State(p.rows))
	}
	p.seen = s
	return s
}

// views are the names of the HTML pages, in the order of their links.
var views = []string{"overview", "calls", "latency", "peers", "memory"}

// viewJSON is the name of the view that has all of these as JSON, for programs.
const viewJSON = "json"

// ServeHTTP implements [http.Handler]. The query has view, one of overview, calls, latency, peers, memory and json, and refresh, a number
// of seconds or 0.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the debug page answers GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	if !p.named(r.Host) {
		http.Error(w, "the debug page answers requests for an IP address, for localhost, and for the names in debugpage.Config.Hosts", http.StatusForbidden)
		return
	}
	view, refresh, err := p.parse(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if refresh > 0 && view != viewJSON {
		h.Set("Refresh", strconv.Itoa(refresh)) // also of a refusal, because the page would otherwise never load itself again
	}
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // zero if the server's listener has no such addresses
	end, err := p.limiter.Begin(hostquota.HostOf(at.Addr()))
	if err != nil {
		h.Set("Retry-After", "1")
		http.Error(w, "the debug page is "+err.Error(), http.StatusTooManyRequests)
		return
	}
	var b bytes.Buffer
	kind, err := p.render(&b, view, refresh)
	end() // before the page is sent, because a slow reader must not hold a place
	if err != nil {
		http.Error(w, "the debug page cannot be made", http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	if r.Method == http.MethodGet {
		_, _ = io.Copy(w, &b) // an error means that the reader is gone
	}
}

// parse reads the query of a request.
func (p *Page) parse(q url.Values) (view string, refresh int, err error) {
	view, refresh = q.Get("view"), p.refresh
	if view == "" {
		view = views[0]
	}
	if view != viewJSON && !slices.Contains(views, view) {
		return "", 0, fmt.Errorf("no such view: want one of %s, %s", strings.Join(views, ", "), viewJSON)
	}
	if text := q.Get("refresh"); text != "" {
		if refresh, err = strconv.Atoi(text); err != nil || refresh < 0 || refresh > mostRefresh {
			return "", 0, fmt.Errorf("refresh is a number of seconds, 0 to %d", mostRefresh)
		}
	}
	return view, refresh, nil
}

// named reports whether a browser may have used host to reach the page.
func (p *Page) named(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = hostName(host)
	if _, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil {
		return true // a name cannot have the form of an address
	}
	return host == "localhost" || slices.Contains(p.hosts, host)
}

// hostName returns a name in the form in which names are compared.
func hostName(h string) string { return strings.ToLower(strings.TrimSuffix(h, ".")) }

// data is the input of the template.
type data struct {
	View, Taken string
	Style       template.CSS
	Refresh     int
	Links       []link
	Engines     []stats.State
	MoreEngines int
	Charts      []charted
	MoreCharts  int
}

// link is a link to a view in the head of the page.
type link struct {
	Name, URL string
	Current   bool
}

// charted is a distribution with its chart.
type charted struct {
	*Latency
	Chart *chart
}

// render writes a view to b and returns its content type.
func (p *Page) render(b *bytes.Buffer, view string, refresh int) (kind string, err error) {
	s := p.look()
	if view == viewJSON {
		all := struct {
			Taken   time.Time     `json:"taken"`
			Engines []stats.State `json:"engines"`
			Latency []*Latency    `json:"latency"`
		}{s.taken, s.engines, p.Latencies()}
		return "application/json", json.NewEncoder(b).Encode(all)
	}
	d := data{View: view, Taken: s.taken.UTC().Format("2006-01-02 15:04:05 UTC"), Style: template.CSS(style), Refresh: refresh, Engines: s.engines, MoreEngines: s.more}
	for _, name := range views {
		to := "?view=" + name
		if refresh != p.refresh {
			to += "&refresh=" + strconv.Itoa(refresh)
		}
		d.Links = append(d.Links, link{name, to, name == view})
	}
	if view == "latency" {
		list := p.Latencies()
		n := min(len(list), p.rows)
		for _, l := range list[:n] {
			d.Charts = append(d.Charts, charted{l, chartOf(l)})
		}
		d.MoreCharts = len(list) - n
	}
	return "text/html; charset=utf-8", page.Execute(b, d)
}

//go:embed page.html
var source string

//go:embed page.css
var style string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"clean": clean, "age": age, "short": short, "bytes": byteCount, "ubytes": func(n uint64) string { return byteCount(int64(min(n, 1<<62))) },
	"odd":  func(state string) bool { return state == "blocked" || state == "paused" },
	"more": func(n, columns int) any { return struct{ N, Columns int }{n, columns} },
}).Parse(source))

// policy allows nothing but the style of the page.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// clean returns the text of a peer with a bounded length and without characters that do not print, such as those that change the
// direction of the text around them. The template escapes the rest.
func clean(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n == maxText {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
		n++
	}
	if n == 0 {
		return "-"
	}
	return b.String()
}

// byteCount returns a number of bytes with its unit; a dash if it is negative, because the network does not count them then.
func byteCount(n int64) string {
	if n < 0 {
		return "-"
	}
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if f /= 1 << 10; f < 1<<10 {
			break
		}
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + unit
}
