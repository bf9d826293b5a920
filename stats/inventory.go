package stats

import "time"

// Inventory is a snapshot of an engine's services, of the operations that are under way, and of the memory that it exposes. It
// is a part of a [State].
type Inventory struct {
	Addr      string `json:"address"`
	Listening bool   `json:"listening"` // peers may send requests
	// MaxRequest and MaxResponse are the bytes of arguments and results that fit one message to a peer without checksums. The
	// receiver fetches longer ones from the sender's memory, which takes two more messages.
	MaxRequest  int `json:"max_request"`
	MaxResponse int `json:"max_response"`

	Age       time.Duration `json:"age_ns"`    // of the engine
	Calls     []Operation   `json:"calls"`     // by this process, the oldest first
	Transfers []Operation   `json:"transfers"` // by this process, the oldest first
	Requests  []Request     `json:"requests"`  // of peers, the oldest first
	Memory    []Memory      `json:"memory"`    // those with most bytes first
	Delayed   int           `json:"delayed"`   // functions that wait for their time
	Providers []Provider    `json:"providers"` // in the order of their ids
	RPCs      []RPC         `json:"rpcs"`      // that are served, in the order of their names
}

// Operation is a call or a transfer that this process has started and that has not ended.
type Operation struct {
	Op     string        `json:"op"`               // "call", "send", "pull", "push"
	RPC    string        `json:"rpc,omitempty"`    // of a call: its name, followed by "@" and the id of the provider if it has one
	Peer   string        `json:"peer"`             // address
	Bytes  int64         `json:"bytes,omitempty"`  // of a transfer
	Age    time.Duration `json:"age_ns"`           // exact to a tenth of a second
	Within string        `json:"within,omitempty"` // the RPC of the handler that has started the operation; empty: none has
}

// Request is a request, or a function of this process that a handler pool runs, which has not ended.
type Request struct {
	State string        `json:"state"`          // "queued", "running"; "waiting" for the network; "held" by the program although its handler has returned
	RPC   string        `json:"rpc"`            // as in Operation; of a function: its name
	Peer  string        `json:"peer"`           // address; empty for a function of this process
	Pool  string        `json:"pool,omitempty"` // empty: in no pool with a name
	Age   time.Duration `json:"age_ns"`         // since the request arrived; if it is held, since its handler has returned
}

// Memory is a number of exposed memories that are alike, such as the buffers of one pool.
type Memory struct {
	Kind  string `json:"kind"` // such as "read-only bulk of 100 bytes in 1 segments"
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"` // of all of them together
	Place string `json:"place"` // where the program exposed it: function, file and line
}

// Provider is a provider that is not closed.
type Provider struct {
	ID       uint16 `json:"id"`
	Identity string `json:"identity"`
}

// RPC is an RPC that an engine serves.
type RPC struct {
	Name     string  `json:"name"`
	ID       uint64  `json:"id"` // on the wire
	Provider *uint16 `json:"provider,omitempty"`
	Flavor   string  `json:"flavor"`
	Pool     string  `json:"pool,omitempty"` // empty: in no pool with a name
}
