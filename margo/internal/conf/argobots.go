package conf

import (
	"fmt"
	"slices"
	"strings"
)

// argobots reads the object "argobots" (margo-abt-config.c).
func (p *parser) argobots(r *reader) {
	r.integer("abt_mem_max_num_stacks", &p.Stacks, 0, maxCount)
	r.integer("abt_thread_stacksize", &p.StackSize, 0, maxCount)
	r.string("profiling_dir", &p.ProfilingDir)
	r.boolean("lazy_stack_alloc", &p.LazyStacks)
	r.each("pools", maxPools, p.pool)
	r.each("xstreams", maxXstreams, p.xstream)
	r.end()
}

func (p *parser) pool(r *reader) {
	pool := Pool{Kind: "fifo_wait", Access: "mpmc"}
	if n, ok := r.any("kind"); ok && n.kind == text && n.text == "external" {
		r.failf("kind", "\"external\" is a pool of another program's making; leave it out, or say fifo_wait")
	}
	r.enum("kind", &pool.Kind, "fifo", "fifo_wait", "prio_wait", "earliest_first")
	r.enum("access", &pool.Access, "private", "spsc", "mpsc", "spmc", "mpmc")
	pool.Name = unusedName("__pool_%d__", len(p.Pools), p.Pool)
	r.name(&pool.Name, p.Pool)
	p.Pools = append(p.Pools, pool)
}

// name reads a key "name", which must be an identifier of C and not be taken.
func (r *reader) name(to *string, find func(string) int) {
	if n, ok := r.get("name", text); ok {
		if !isIdentifier(n.text) {
			r.failf("name", "want letters, digits and underscores, of which the first is no digit, got %s", n.describe())
		}
		*to = n.text
	}
	if find(*to) >= 0 {
		r.failf("name", "%q is the name of an earlier one; names must differ", cut(*to))
	}
}

func isIdentifier(s string) bool {
	for i, c := range []byte(s) {
		switch {
		case c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', i > 0 && c >= '0' && c <= '9':
		default:
			return false
		}
	}
	return s != ""
}

// unusedName makes the name of something that was given none; n is how many there are.
func unusedName(format string, n int, find func(string) int) string {
	for ; ; n++ {
		if name := fmt.Sprintf(format, n); find(name) < 0 {
			return name
		}
	}
}

func (p *parser) xstream(r *reader) {
	x := Xstream{Name: unusedName("__xstream_%d__", len(p.Xstreams), p.Xstream), Scheduler: "basic_wait"}
	r.name(&x.Name, p.Xstream)
	optional(r, "cpubind", &x.CPU, func(key string, to *int64) { r.integer(key, to, -1, maxCount) })
	if n, ok := r.get("affinity", array); ok {
		for i, item := range n.items {
			x.Affinity = append(x.Affinity, r.element("affinity", i, item))
		}
	}
	if _, ok := r.any("scheduler"); !ok {
		r.failf("scheduler", "is missing; say which pools the xstream serves, as in {\"pools\": [0]}")
	}
	if sub, ok := r.object("scheduler"); ok {
		sub.enum("type", &x.Scheduler, "default", "basic", "prio", "randws", "basic_wait")
		x.Pools = p.poolsOf(sub)
		sub.end()
	}
	p.Xstreams = append(p.Xstreams, x)
}

// element reads a whole number of an array.
func (r *reader) element(key string, i int, n node) (v int64) {
	key = fmt.Sprintf("%s[%d]", key, i)
	if n.kind != number {
		r.failf(key, "want %v, got %s", number, n.describe())
		return 0
	}
	r.number(key, n, &v, 0, maxCount)
	return v
}

// poolsOf reads a scheduler's pools.
func (p *parser) poolsOf(r *reader) []int {
	n, ok := r.get("pools", array)
	if len(n.items) == 0 || !ok {
		r.failf("pools", "is missing or empty; a scheduler has at least one pool")
		return nil
	}
	var list []int
	for i, item := range n.items {
		at := p.reference(r, fmt.Sprintf("pools[%d]", i), item, len(p.Pools))
		if p.fault != nil {
			return nil
		}
		if slices.Contains(list, at) {
			r.failf("pools", "names the pool %q twice", cut(p.Pools[at].Name))
			return nil
		}
		list = append(list, at)
	}
	return list
}

// reference resolves the index or the name of one of the first given pools, and returns 0 if it cannot be resolved.
func (p *parser) reference(r *reader, key string, n node, given int) int {
	switch n.kind {
	case number:
		var i int64
		if given == 0 {
			r.failf(key, "is %s, but argobots.pools has none", n.describe())
			return 0
		}
		r.number(key, n, &i, 0, int64(given)-1)
		return int(i)
	case text:
		if i := p.Pool(n.text); i >= 0 && i < given {
			return i
		}
		r.failf(key, "there is no pool %q in argobots.pools, which has %s", cut(n.text), p.names(given))
	default:
		r.failf(key, "want the name or the index of a pool, got %s", n.describe())
	}
	return 0
}

// names lists the first given pools.
func (p *parser) names(given int) string {
	var names []string
	for _, pool := range p.Pools[:given] {
		names = append(names, pool.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.TrimSpace(quoted(names))
}
