// Command 09 is the ninth tutorial, configuration: it opens an engine with a configuration in Margo's JSON, writes the engine's
// configuration as JSON, and reads it again.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"

	"cinnabar/codes"
	"cinnabar/margo"
)

// document is a configuration as margo_init_ext takes it. Keys that it does not have keep their defaults. The number of execution
// streams that serve a pool becomes the pool's number of workers.
const document = `{
	"progress_timeout_ub_msec": 50,
	"mercury": {"no_bulk_eager": true},
	"argobots": {
		"pools": [{"name": "__primary__"}, {"name": "disk", "kind": "prio_wait"}],
		"xstreams": [
			{"name": "__primary__", "scheduler": {"type": "basic_wait", "pools": ["__primary__"]}},
			{"name": "es1", "scheduler": {"type": "basic_wait", "pools": ["disk"]}},
			{"name": "es2", "scheduler": {"type": "basic_wait", "pools": ["disk"]}}
		]
	},
	"rpc_pool": "disk"
}`

// start opens an engine with the configuration, and returns the configuration that the engine has then.
func start(configuration []byte) ([]byte, error) {
	cfg, err := margo.ParseConfig(configuration)
	if err != nil {
		return nil, err
	}
	cfg.AllowRemoteShutdown = true // a decision of the program
	server, err := margo.Listen(context.Background(), "ofi+tcp://127.0.0.1", cfg)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	for _, c := range server.Config().Pools {
		fmt.Println("pool:", c.Name, c.Kind, "workers:", c.Workers)
	}
	return margo.FormatConfig(cfg.InForce(server), margo.ConfigFormat{})
}

func run() error {
	first, err := start([]byte(document))
	if err != nil {
		return err
	}
	var parts struct {
		Mercury struct {
			NoBulkEager bool `json:"no_bulk_eager"`
			Listening   bool `json:"listening"`
		} `json:"mercury"`
	}
	if err := json.Unmarshal(first, &parts); err != nil {
		return err
	}
	fmt.Println("no eager bulk:", parts.Mercury.NoBulkEager, "listening:", parts.Mercury.Listening)

	cfg, err := margo.ParseConfig(first)
	if err != nil {
		return err
	}
	again, err := margo.FormatConfig(cfg, margo.ConfigFormat{})
	if err != nil {
		return err
	}
	fmt.Println("the same again:", bytes.Equal(first, again))
	_, err = margo.ParseConfig([]byte(`{"rpc_pool": "tape"}`))
	fmt.Println("no such pool:", codes.Of(err))
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
