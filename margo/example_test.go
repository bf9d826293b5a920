package margo_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"cinnabar/margo"
)

// A server with a configuration in Margo's JSON serves queries, and logs lines in Margo's format.
func Example() {
	cfg, err := margo.ParseConfig([]byte(`{"rpc_thread_count": 2, "cinnabar": {"allow_query": true}}`))
	if err != nil {
		log.Fatal(err)
	}
	if cfg.Logger, err = margo.NewLogger(os.Stdout, cfg.Log); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	engine, err := margo.Listen(ctx, "ofi+tcp://127.0.0.1", cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	cfg.Logger.WarnContext(ctx, "the server runs with few workers")
	description, err := margo.Query(ctx, engine.Self())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("workers:", description.Pools[0].Workers)
	// Output:
	// [warning] the server runs with few workers
	// workers: 2
}
