package otel_test

import (
	"context"
	"fmt"
	"log"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"cinnabar"
	"cinnabar/native"
	"cinnabar/otel"
)

var double = native.New[int32, int32]("double")

// A client calls a server, and both have a span in the same trace. A program has an exporter that sends spans to a collector, in place of the one that keeps them in memory.
func Example() {
	ctx := context.Background()
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	// configuration returns one for an engine that traces.
	configuration := func() *cinnabar.Config {
		cfg := &cinnabar.Config{}
		otel.Install(cfg, &otel.Config{Provider: provider})
		return cfg
	}
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", configuration())
	if err != nil {
		log.Fatal(err)
	}
	if err := double.Handle(server, func(_ context.Context, n int32) (int32, error) { return 2 * n, nil }); err != nil {
		log.Fatal(err)
	}
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", configuration())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := double.Call(ctx, ep, 4); err != nil {
		log.Fatal(err)
	}
	if err := server.Shutdown(ctx); err != nil { // which waits for the end of the handler's span
		log.Fatal(err)
	}

	list := spans.GetSpans()
	for _, s := range list {
		fmt.Println(s.SpanKind, s.Name, s.SpanContext.TraceID() == list[0].SpanContext.TraceID())
	}
	// Unordered output:
	// client double true
	// server double true
}
