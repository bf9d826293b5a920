// Command service serves an RPC inside TLS, with a debug page and figures for Prometheus:
//
//	service [-http HOST:PORT] -cert FILE -key FILE ADDRESS
//
// It prints its address, such as ofi+tcps://127.0.0.1:7796, and the addresses of the page and the figures, and ends at SIGINT or SIGTERM, or when
// cinnabar shutdown asks it to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"cinnabar"
	"cinnabar/debugpage"
	"cinnabar/identity"
	"cinnabar/margo"
	"cinnabar/metrics"
	"cinnabar/native"
)

// PriceIn is an order.
type PriceIn struct {
	Item  string
	Count uint32
}

// Price returns the price of an order in cents.
var Price = native.New[PriceIn, uint64]("price")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) (err error) {
	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	web := flags.String("http", "127.0.0.1:9464", "address of the page and the figures, which ask for no password")
	cert := flags.String("cert", "", "file with the certificate in PEM")
	key := flags.String("key", "", "file with the private key in PEM")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("want one ADDRESS, such as ofi+tcps://127.0.0.1:7796")
	}
	certs, err := identity.LoadCertificates(identity.Files{Certificate: *cert, Key: *key})
	if err != nil {
		return err
	}
	collector, page := metrics.New(nil), debugpage.New(nil)
	cfg := &cinnabar.Config{TLS: certs.Config(), DialTLS: certs.Dial, AllowRemoteShutdown: true}
	collector.Install(cfg)
	page.Install(cfg)
	l, err := net.Listen("tcp", *web)
	if err != nil {
		return fmt.Errorf("-http %s: %w", *web, err)
	}
	server := &http.Server{Handler: pages(page, collector), ReadHeaderTimeout: 10 * time.Second}
	e, err := cinnabar.Listen(ctx, flags.Arg(0), cfg)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, e.Shutdown(end), server.Shutdown(end)) // calls under way end
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
	}()
	if err := handle(e); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s\nhttp://%s/\nhttp://%[2]s/metrics\n", e.Addr(), l.Addr()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-e.Done(): // cinnabar shutdown
	}
	return nil
}

// handle makes the engine serve Price, its description, and cinnabar query and top.
func handle(e *cinnabar.Engine) error {
	return errors.Join(
		Price.Handle(e, func(_ context.Context, in PriceIn) (uint64, error) {
			return uint64(len(in.Item)) * uint64(in.Count), nil
		}),
		native.HandleReflection(e),
		margo.ServeQuery(e, nil))
}

// pages serves the debug page, and the figures for Prometheus at /metrics.
func pages(page *debugpage.Page, collector *metrics.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	mux := http.NewServeMux()
	mux.Handle("/", page)
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}
