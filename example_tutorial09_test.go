package cinnabar_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"

	"cinnabar"
)

// margoJSON is a configuration as margo_init_ext takes it: what it does not say has its default. The execution streams
// that serve a pool become its workers.
const margoJSON = `{
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

// startConfigured makes a server as the configuration says, and returns the configuration that it has become.
func startConfigured(configuration []byte) ([]byte, error) {
	cfg, err := cinnabar.ParseConfig(configuration)
	if err != nil {
		return nil, err
	}
	cfg.AllowRemoteShutdown = true // what the program decides
	server, err := cinnabar.Listen("ofi+tcp://127.0.0.1", cfg)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	for _, p := range server.Pools() {
		fmt.Println("pool:", p.Name(), p.Config().Kind, "workers:", p.Config().Workers)
	}
	return json.Marshal(server.Config())
}

// Tutorial 9, configuration: [cinnabar.Config] in Go, or Margo's JSON. The configuration of an engine that runs can be
// written down in Margo's layout, and used again for another.
// parity: G96
func Example_tutorial09() {
	first, err := startConfigured([]byte(margoJSON))
	if err != nil {
		log.Fatal(err)
	}
	var parts struct {
		Mercury struct {
			NoBulkEager bool `json:"no_bulk_eager"`
			Listening   bool `json:"listening"`
		} `json:"mercury"`
	}
	if err := json.Unmarshal(first, &parts); err != nil {
		log.Fatal(err)
	}
	fmt.Println("no eager bulk:", parts.Mercury.NoBulkEager, "listening:", parts.Mercury.Listening)
	cfg, err := cinnabar.ParseConfig(first)
	if err != nil {
		log.Fatal(err)
	}
	again, err := json.Marshal(cfg)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same again:", bytes.Equal(first, again))
	_, err = cinnabar.ParseConfig([]byte(`{"rpc_pool": "tape"}`))
	fmt.Println("no such pool:", cinnabar.CodeOf(err))
	// Output:
	// pool: disk prio_wait workers: 2
	// no eager bulk: true listening: true
	// the same again: true
	// no such pool: HG_INVALID_ARG
}
