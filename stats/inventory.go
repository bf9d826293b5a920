package stats

import "time"

// Inventory is a snapshot of an engine's services, of the operations that are under way, and of the memory that it exposes. The
// engine copies the parts one after the other while it works, so two parts may differ by the operations in between.
type Inventory struct {
	Addr      string
	Listening bool // peers may send requests
	// MaxRequest and MaxResponse are the bytes of arguments and results that fit one message to a peer without checksums. The
	// receiver fetches longer ones from the sender's memory, which takes two more messages.
	MaxRequest, MaxResponse int

	Age       time.Duration // of the engine
	Calls     []Operation   // by this process, the oldest first
	Transfers []Operation   // by this process, the oldest first
	Requests  []Request     // of peers
	Memory    []Memory      // the oldest first
	Delayed   int           // functions that wait for their time
	Providers []Provider    // in the order of their ids
	RPCs      []RPC         // that are served, in the order of their names
}

// Operation is a call or a transfer that this process has started and that has not ended.
type Operation struct {
	Op     string        // "call", "send", "pull", "push"
	RPC    string        // of a call: its name, followed by "@" and the id of the provider if it has one
	Peer   string        // address
	Bytes  int64         // of a transfer
	Age    time.Duration // exact to a tenth of a second
	Within string        // the RPC of the handler that has started the operation; empty: none has
}

// Request is a request, or a function of this process that a handler pool runs, which has not ended.
type Request struct {
	State string        // "queued", "running"; "waiting" for the network; "held" by the program although its handler has returned
	RPC   string        // as in Operation; of a function: its name
	Peer  string        // address; empty for a function of this process
	Pool  string        // empty: in no pool with a name
	Age   time.Duration // since the request arrived; if it is held, since its handler has returned
}

// Memory is a number of exposed memories that are alike, such as the buffers of one pool.
type Memory struct {
	Kind  string // such as "read-only bulk of 100 bytes in 1 segments"
	Count int
	Bytes int64  // of all of them together
	Place string // where the program exposed it: function, file and line
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
