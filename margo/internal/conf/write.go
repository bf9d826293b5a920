package conf

import (
	"bytes"
	"encoding/json"
)

// Options are those of margo_get_config_opt. That for external pools is missing: no pool is.
type Options struct {
	Pretty   bool // MARGO_CONFIG_PRETTY_JSON
	UseNames bool // MARGO_CONFIG_USE_NAMES: refer to pools by name, not by index
}

// document is the layout of the JSON, in C's order.
type document struct {
	Version         string          `json:"version"`
	Argobots        argobotsObject  `json:"argobots"`
	Mercury         Mercury         `json:"mercury"`
	Monitoring      *Monitoring     `json:"monitoring,omitempty"`
	Plumber         *Plumber        `json:"plumber,omitempty"`
	ProgressTimeout int64           `json:"progress_timeout_ub_msec"`
	Spindown        int64           `json:"progress_spindown_msec"`
	HandleCache     int64           `json:"handle_cache_size"`
	Profiling       bool            `json:"enable_abt_profiling"`
	ProgressPool    any             `json:"progress_pool"`
	RPCPool         any             `json:"rpc_pool"`
	Own             json.RawMessage `json:"cinnabar,omitempty"`
}

type argobotsObject struct {
	Pools        []Pool          `json:"pools"`
	Xstreams     []xstreamObject `json:"xstreams"`
	Stacks       int64           `json:"abt_mem_max_num_stacks"`
	StackSize    int64           `json:"abt_thread_stacksize"`
	ProfilingDir string          `json:"profiling_dir"`
	LazyStacks   bool            `json:"lazy_stack_alloc"`
}

type xstreamObject struct {
	Scheduler schedulerObject `json:"scheduler"`
	Name      string          `json:"name"`
	CPU       *int64          `json:"cpubind,omitempty"`
	Affinity  []int64         `json:"affinity,omitempty"`
}

type schedulerObject struct {
	Type  string `json:"type"`
	Pools []any  `json:"pools"` // indexes or names
}

// Append writes the document that stands for c.
func (c *Config) Append(b []byte, o Options) ([]byte, error) {
	own, err := encode(&c.Own)
	if err != nil {
		return b, err
	}
	if bytes.Equal(own, []byte("{}")) {
		own = nil
	}
	ref := func(pool int) any {
		if o.UseNames {
			return c.Pools[pool].Name
		}
		return pool
	}
	text, err := encode(&document{
		Version: MargoVersion, Argobots: c.argobots(ref), Mercury: c.Mercury, Monitoring: c.Monitoring, Plumber: c.Plumber,
		ProgressTimeout: c.ProgressTimeout, Spindown: c.Spindown, HandleCache: c.HandleCache, Profiling: c.Profiling,
		ProgressPool: ref(c.ProgressPool), RPCPool: ref(c.RPCPool), Own: own,
	})
	if err != nil {
		return b, err
	}
	if !o.Pretty {
		return append(b, text...), nil
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return b, err
	}
	return append(b, indented.Bytes()...), nil
}

// argobots returns the object "argobots"; ref writes references to pools.
func (c *Config) argobots(ref func(int) any) argobotsObject {
	a := argobotsObject{Pools: c.Pools, Stacks: c.Stacks, StackSize: c.StackSize, ProfilingDir: c.ProfilingDir, LazyStacks: c.LazyStacks}
	for _, x := range c.Xstreams {
		s := schedulerObject{Type: x.Scheduler}
		for _, pool := range x.Pools {
			s.Pools = append(s.Pools, ref(pool))
		}
		a.Xstreams = append(a.Xstreams, xstreamObject{Scheduler: s, Name: x.Name, CPU: x.CPU, Affinity: x.Affinity})
	}
	return a
}

// encode is json.Marshal that leaves HTML's characters alone, as C does.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
