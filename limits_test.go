package cinnabar

import (
	"fmt"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/hostquota"
)

// TestLimitsFitIntoMemory checks for small and large machines that everything that is counted, together, is MaxMemory.
func TestLimitsFitIntoMemory(t *testing.T) {
	for shift := 25; shift < 40; shift++ {
		for _, pools := range []int{0, 1, 7} {
			cfg := &Config{MaxMemory: 1 << shift}
			for i := range pools {
				cfg.Pools = append(cfg.Pools, PoolConfig{Name: fmt.Sprint(i)})
			}
			c := cfg.filled()
			if err := c.check(); err != nil {
				t.Errorf("%d bytes and %d pools: %v", cfg.MaxMemory, pools, err)
			}
			l := c.limits()
			if sum := c.reserved() + l[hostquota.Memory]; sum != cfg.MaxMemory {
				t.Errorf("the limits add up to %d of %d bytes", sum, cfg.MaxMemory)
			}
			if c.OverflowBudget > l[hostquota.Memory] || c.MaxOverflow > c.OverflowBudget || c.MaxOverflow < 1<<20 || c.MaxOverflow > hostquota.Most(l[hostquota.Memory], 0) {
				t.Errorf("%d bytes: MaxOverflow %d, OverflowBudget %d", cfg.MaxMemory, c.MaxOverflow, c.OverflowBudget)
			}
			for _, n := range []int{c.MaxHandlers, c.MaxQueued, c.MaxConnections, int(l[hostquota.Unsent]), int(l[hostquota.Pulls])} {
				if n < 8 {
					t.Errorf("%d bytes: a limit is %d: %+v", cfg.MaxMemory, n, c)
				}
			}
		}
	}
	c := (&Config{MaxMemory: 1 << 36, Pools: []PoolConfig{{Name: "p"}}}).filled()
	if c.MaxHandlers != 4096 || c.MaxQueued != 65536 || c.Pools[0].Queue != 65536 || c.OverflowBudget != 4<<30 || c.MaxOverflow != 1<<30 {
		t.Errorf("a large machine has %+v", c)
	}
	if c.unsent() != 65536 || c.pulls() != 16384 {
		t.Errorf("a large machine has %d unsent responses and %d pulls", c.unsent(), c.pulls())
	}
}

// TestLargeRequestsFitIntoMemory checks that requests which peers leave unfinished, one on each connection, are a part of
// MaxMemory.
func TestLargeRequestsFitIntoMemory(t *testing.T) {
	cfg := &Config{MaxMemory: 1 << 30, MaxRequest: 1 << 20}
	c := cfg.filled()
	if sum := int64(c.MaxConnections) * int64(c.MaxRequest); sum > c.MaxMemory/connectionsPart || c.MaxConnections < 8 {
		t.Errorf("%d connections may hold %d bytes of %d", c.MaxConnections, sum, c.MaxMemory)
	}
	cfg.MaxConnections = 1000
	c = cfg.filled()
	wantCode(t, c.checkLimits(), codes.InvalidArg, "MaxConnections, which is 1000")
}

func TestLimitsRefused(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want []string
	}{
		{Config{MaxMemory: 1 << 20}, []string{"MaxMemory is 1048576", "at least"}},
		{Config{MaxMemory: -1}, []string{"MaxMemory is -1"}},
		{Config{MaxConnections: -2}, []string{"MaxConnections is -2"}},
		{Config{MaxMemory: 1 << 30, MaxQueued: 1 << 20}, []string{"MaxQueued, which is 1048576", "MaxMemory, which is 1073741824", "lower it, or raise MaxMemory"}},
		{Config{MaxMemory: 1 << 30, MaxConnections: 1 << 20}, []string{"MaxConnections, which is 1048576"}},
		{Config{MaxMemory: 1 << 30, Pools: []PoolConfig{{Name: "p", Queue: 1 << 62}}}, []string{"Queue of pool p"}},
		{Config{MaxMemory: 1 << 30, MaxOverflow: 2 << 30}, []string{"MaxOverflow is 2147483648", "raise MaxMemory"}},
		{Config{MaxMemory: 1 << 30, OverflowBudget: 2 << 30}, []string{"OverflowBudget is 2147483648", "raise MaxMemory"}},
	} {
		_, err := Open(t.Context(), "tcp", &test.cfg)
		wantCode(t, err, codes.InvalidArg, test.want...)
	}
	_, err := Open(t.Context(), "na+sm", &Config{MaxConnections: 256})
	wantCode(t, err, codes.InvalidArg, "at most 255")
}

// TestLimitsInForce checks that the limits of an engine are shown.
// parity: A07
func TestLimitsInForce(t *testing.T) {
	e := calling(t, &Config{MaxMemory: 1 << 30, MaxConnections: 100})
	c := e.Config()
	if c.MaxMemory != 1<<30 || c.MaxConnections != 100 || c.OverflowBudget <= 0 || c.OverflowBudget >= 1<<30 || c.TransferStall != defaultTransferStall {
		t.Errorf("in force: %+v", c)
	}
	if d := (*Config)(nil).WithDefaults(); d.MaxMemory != defaultMemory() || d.MaxConnections <= 0 {
		t.Errorf("defaults: %+v", d)
	}
}

// TestAddedPoolFitsIntoMemory checks that the queue of a pool that is added while the engine runs is a part of MaxMemory.
func TestAddedPoolFitsIntoMemory(t *testing.T) {
	e := calling(t, &Config{MaxMemory: 64 << 20})
	_, err := e.AddPool(PoolConfig{Name: "large", Queue: 1 << 20})
	wantCode(t, err, codes.NoMem, "Queue of pool", "raise MaxMemory")
	before := e.cfg.quota.Used(hostquota.Memory)
	p, err := e.AddPool(PoolConfig{Name: "small"})
	must(t, err)
	if q := p.Config().Queue; q < 8 || q > 1<<20 || e.cfg.quota.Used(hostquota.Memory) == before {
		t.Errorf("the queue has %d places, and %d bytes are counted", q, e.cfg.quota.Used(hostquota.Memory)-before)
	}
	must(t, e.RemovePool("small"))
	if got := e.cfg.quota.Used(hostquota.Memory); got != before {
		t.Errorf("%d bytes are counted, want %d", got, before)
	}
}
