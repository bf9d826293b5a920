package metrics_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"cinnabar"
	"cinnabar/metrics"
)

var double = cinnabar.NewRPC[int32, int32]("double")

// A server exports its figures, and so does a client in the same process. The label engine distinguishes the two.
func Example() {
	ctx := context.Background()
	registry := prometheus.NewRegistry()
	// configuration returns one for an engine with a collector.
	configuration := func(name string) *cinnabar.Config {
		collector := metrics.New(nil)
		prometheus.WrapRegistererWith(prometheus.Labels{"engine": name}, registry).MustRegister(collector)
		cfg := &cinnabar.Config{}
		collector.Install(cfg)
		return cfg
	}
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", configuration("server"))
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := double.Handle(server, func(_ context.Context, n int32) (int32, error) { return 2 * n, nil }); err != nil {
		log.Fatal(err)
	}
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", configuration("client"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	for n := range int32(3) {
		if _, err := double.Call(ctx, ep, n); err != nil {
			log.Fatal(err)
		}
	}

	// A program calls http.Handle("/metrics", promhttp.HandlerFor(...)), and Prometheus reads the page.
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for lines := bufio.NewScanner(page.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, `cinnabar_rpc_duration_seconds_count{engine="client",rpc="double"`) {
			fmt.Println(line)
		}
	}
	// Output:
	// cinnabar_rpc_duration_seconds_count{engine="client",rpc="double",side="client"} 3
}
