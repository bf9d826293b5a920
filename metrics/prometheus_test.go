package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// scrapes counts the scrapes of a target, and wakes the test at each.
type scrapes struct {
	next http.Handler

	mu sync.Mutex
	n  int
	at chan struct{} // closed at the next scrape
}

func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.n++
	close(s.at)
	s.at = make(chan struct{})
	s.mu.Unlock()
	s.next.ServeHTTP(w, r)
}

// await waits for n further scrapes, and reports whether they came before ended is closed.
func (s *scrapes) await(n int, ended <-chan struct{}) bool {
	s.mu.Lock()
	goal := s.n + n
	s.mu.Unlock()
	for {
		s.mu.Lock()
		at, reached := s.at, s.n >= goal
		s.mu.Unlock()
		if reached {
			return true
		}
		select {
		case <-at:
		case <-ended:
			return false
		}
	}
}

// server is a Prometheus that runs.
type server struct {
	url   string
	ended chan struct{} // closed when the process has ended
	log   bytes.Buffer  // read after ended is closed
}

// mostScrapes is the number of scrapes after which a test gives up: it waits for events, and on a busy machine a scrape may take too long.
const mostScrapes = 120

// startPrometheus starts Debian's Prometheus, which scrapes target. A port that another process takes first is the reason for a second try.
func startPrometheus(t *testing.T, target string, seen *scrapes) *server {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("Debian's package prometheus is not installed")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	must(t, os.WriteFile(config, []byte(fmt.Sprintf(`
global: {scrape_interval: 500ms}
scrape_configs:
  - job_name: cinnabar
    static_configs: [{targets: [%q]}]
`, target)), 0o600))
	for try := range 5 {
		address := freePort(t)
		s := &server{url: "http://" + address + "/", ended: make(chan struct{})}
		cmd := exec.Command(path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, fmt.Sprint("data", try)),
			"--web.listen-address="+address, "--log.level=warn", "--scrape.discovery-reload-interval=50ms")
		cmd.Stdout, cmd.Stderr = &s.log, &s.log
		must(t, cmd.Start())
		go func() {
			defer close(s.ended)
			_ = cmd.Wait() // the status of a process that the test ends
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			<-s.ended
		})
		if seen.await(1, s.ended) {
			return s
		}
		t.Logf("try %d: %s", try, s.log.String())
	}
	t.Fatal("Prometheus does not run")
	return nil
}

// freePort returns an address of the loopback interface that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// result is one series of the answer to a query.
type result struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

func (r result) value(t *testing.T) float64 {
	t.Helper()
	text, _ := r.Value[1].(string)
	v, err := strconv.ParseFloat(text, 64)
	must(t, err)
	return v
}

// query evaluates an expression. While Prometheus starts, its status is 503 and ready is false.
func (s *server) query(ctx context.Context, expr string) (list []result, ready bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, false, err
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, false, err
	}
	defer w.Body.Close()
	if w.StatusCode == http.StatusServiceUnavailable {
		return nil, false, nil
	}
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []result
		}
	}
	if err := json.NewDecoder(w.Body).Decode(&answer); err != nil {
		return nil, false, fmt.Errorf("%s: status %s: %w", expr, w.Status, err)
	}
	if answer.Status != "success" || answer.Data.ResultType != "vector" {
		return nil, false, fmt.Errorf("%s: %s %s %s", expr, answer.Status, answer.Error, answer.Data.ResultType)
	}
	return answer.Data.Result, true, nil
}

// TestPrometheus lets the real server scrape a process under load. It compares the figures with the load generator's own counts, and evaluates every query
// of the dashboard there.
func TestPrometheus(t *testing.T) {
	seen := &scrapes{at: make(chan struct{})}
	target := httptest.NewServer(seen)
	defer target.Close()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("Debian's package prometheus is not installed")
	}
	r := newRig(t)
	seen.next = promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{})
	p := startPrometheus(t, target.Listener.Addr().String(), seen)
	defer http.DefaultClient.CloseIdleConnections()

	// settled evaluates a query after further scrapes until check accepts its result. A scrape that begins is the event that the one
	// before has ended.
	settled := func(expr string, check func([]result) bool) {
		t.Helper()
		var got []result
		for range mostScrapes {
			list, ready, err := p.query(t.Context(), expr)
			must(t, err)
			if got = list; ready && check(list) {
				return
			}
			if !seen.await(1, p.ended) {
				t.Fatalf("Prometheus has ended: %s", p.log.String())
			}
		}
		t.Fatalf("after %d scrapes %s has the result %v", mostScrapes, expr, got)
	}
	for expr, want := range r.want() {
		settled(expr, func(list []result) bool { return len(list) == 1 && list[0].value(t) == want })
	}
	d := readDashboard(t)
	for _, q := range d.queries() {
		settled(q.expr, func(list []result) bool { return len(list) > 0 })
	}
	settled(`max(abs(up - 1))`, func(list []result) bool { return len(list) == 1 && list[0].value(t) == 0 })
}
