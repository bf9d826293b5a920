package stats

import "time"

// State is a snapshot for a person who looks into a running process: calls that run or wait, exposed memory, and connections. Each list
// has at most as many rows as the caller of [cinnabar.Engine.State] allows, and More has the numbers of the others. The engine copies the
// parts one after the other while it serves, so two parts may differ by the operations in between. A State has no arguments, no results and no
// keys of memory. Texts of peers are in it as the peers sent them, so a program that shows them must escape them.
type State struct {
	Inventory
	Taken       time.Time    `json:"taken"`
	MemoryCount int          `json:"memory_count"` // all exposed memories
	MemoryBytes int64        `json:"memory_bytes"` // of all of them together
	Connections []Connection `json:"connections"`  // attempts to connect first, then the connections with most bytes
	Pools       []NamedPool  `json:"pools"`        // the first, without a name, has the handlers outside of named pools
	Net         Net          `json:"statistics"`
	More        More         `json:"more"`
}

// More has the number of rows that each list of a [State] leaves out. For memory it is the number of exposed memories that are in none
// of the rows.
type More struct {
	Calls       int `json:"calls,omitempty"`
	Transfers   int `json:"transfers,omitempty"`
	Requests    int `json:"requests,omitempty"`
	Memory      int `json:"memory,omitempty"`
	Connections int `json:"connections,omitempty"`
	Pools       int `json:"pools,omitempty"`
	Providers   int `json:"providers,omitempty"`
	RPCs        int `json:"rpcs,omitempty"`
}

// Connection is a connection with a peer, or an attempt to connect.
type Connection struct {
	Peer string `json:"peer"` // address
	// State is "connecting", "active", "idle", "blocked" (the peer takes no bytes), "paused" (this process reads nothing, because the
	// peer leaves too many answers unread), "ending", or "open" on a network that does not say more.
	State    string `json:"state"`
	Inbound  bool   `json:"inbound"`  // the peer has made the connection
	Received int64  `json:"received"` // bytes; negative: the network does not count them
	Sent     int64  `json:"sent"`     // bytes; negative: the network does not count them
	Report   string `json:"report,omitempty"`
}

// NamedPool has the counters of a handler pool.
type NamedPool struct {
	Name string `json:"name"`
	Pool
}

// Bounds of the rows in each list of a [State].
const (
	DefaultRows = 64
	MostRows    = 1024
)

// Clip cuts each list of s to limit rows, and adds the number of removed rows to More. A program calls it on a State that another
// process has sent, because that process may not keep to the limit. A limit of 0 or less stands for DefaultRows, and one above MostRows
// for MostRows.
func (s *State) Clip(limit int) {
	limit = Rows(limit)
	clip(&s.Calls, limit, &s.More.Calls)
	clip(&s.Transfers, limit, &s.More.Transfers)
	clip(&s.Requests, limit, &s.More.Requests)
	for _, m := range s.Memory[min(limit, len(s.Memory)):] {
		s.More.Memory += m.Count
	}
	clip(&s.Memory, limit, new(int))
	clip(&s.Connections, limit, &s.More.Connections)
	clip(&s.Pools, limit, &s.More.Pools)
	clip(&s.Providers, limit, &s.More.Providers)
	clip(&s.RPCs, limit, &s.More.RPCs)
}

// Rows returns the number of rows that a limit stands for: DefaultRows for 0 or less, and at most MostRows.
func Rows(limit int) int {
	if limit <= 0 {
		return DefaultRows
	}
	return min(limit, MostRows)
}

// clip cuts *list to limit elements, and adds the number of the others to *more.
func clip[T any](list *[]T, limit int, more *int) {
	*more = max(*more, 0)
	if n := len(*list) - limit; n > 0 {
		*list, *more = (*list)[:limit], *more+n
	}
}
