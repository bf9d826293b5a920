package hostquota

import (
	"errors"
	"math"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func host(n byte) Host { return HostOf(netip.AddrFrom4([4]byte{127, 0, 0, n})) }

// fill takes single units until one is refused, and returns how many were granted.
func fill(t *testing.T, a *Account, r Resource) (n int64) {
	t.Helper()
	for {
		err := a.Take(r, 1)
		if err == nil {
			n++
			continue
		}
		if limit, ok := errors.AsType[*LimitError](err); !ok || limit.Host != a.Host() || limit.Resource != r {
			t.Fatalf("Take says %v, want a LimitError of %v", err, a.Host())
		}
		return n
	}
}

// parity: A07
func TestShares(t *testing.T) {
	b := NewBook(Limits{Handlers: 4096})
	if got := fill(t, b.Account(host(1)), Handlers); got != 2304 {
		t.Errorf("one host got %d of 4096, want 2304", got)
	}
}

// TestMostAlone checks that MostOf is the largest amount that is granted to a host which is alone.
func TestMostAlone(t *testing.T) {
	for limit := int64(1); limit < 10_000; limit++ {
		if limit == 9_999 {
			limit = math.MaxInt64 - 1
		}
		most := Most(limit, 0)
		if !Grants(limit, most, most) || Grants(limit, most+1, most+1) {
			t.Fatalf("of %d a host gets at most %d, which is wrong", limit, most)
		}
	}
}

// TestHugeRequest has a host ask for so much that the sums overflow. It is refused, and counts nothing.
func TestHugeRequest(t *testing.T) {
	b := NewBook(Limits{Memory: 1 << 30})
	a, other := b.Account(host(1)), b.Account(host(2))
	for _, n := range []int64{1, 1000} {
		if err := other.Take(Memory, n); err != nil {
			t.Fatal(err)
		}
		for _, huge := range []int64{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2, 1<<30 + 1} {
			if err := a.Take(Memory, huge); err == nil {
				t.Errorf("%d bytes of %d are granted", huge, b.Limit(Memory))
			}
		}
		if err := a.Take(Memory, n); err != nil {
			t.Fatal(err)
		}
	}
	if used := b.Used(Memory); used != 2002 {
		t.Errorf("%d bytes are counted, want 2002", used)
	}
}

// TestRefusalsDoNotDisturb has a host ask for too much again and again. Meanwhile another one, which asks for little, is
// never refused, because what is refused is not counted first.
func TestRefusalsDoNotDisturb(t *testing.T) {
	const limit = 1 << 20
	b := NewBook(Limits{Memory: limit})
	greedy, modest := b.Account(host(1)), b.Account(host(2))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if greedy.Take(Memory, limit) == nil {
					t.Error("one host got all memory")
				}
			}
		}
	})
	for range 100_000 {
		if err := modest.Take(Memory, limit/4); err != nil {
			t.Error(err)
			break
		}
		modest.Give(Memory, limit/4)
	}
	close(stop)
	wg.Wait()
}

func TestLateHostFindsRoom(t *testing.T) {
	b := NewBook(Limits{Handlers: 64})
	var accounts []*Account
	for n := range byte(10) {
		a := b.Account(host(n + 1))
		fill(t, a, Handlers)
		accounts = append(accounts, a)
	}
	if err := b.Account(host(99)).Take(Handlers, 1); err != nil {
		t.Errorf("an eleventh host: %v", err)
	}
	runtime.KeepAlive(accounts)
}

// TestMost compares Most with the units that a host gets one by one.
func TestMost(t *testing.T) {
	for limit := range int64(200) {
		for others := range limit + 1 {
			var own int64
			for Grants(limit, others+own+1, own+1) {
				own++
			}
			if got := Most(limit, others); limit > 0 && got != own {
				t.Fatalf("limit %d, others %d: %d, want %d", limit, others, got, own)
			}
		}
	}
}

func TestSmallLimitIsNotDivided(t *testing.T) {
	b := NewBook(Limits{Handlers: Undivided - 1})
	if got := fill(t, b.Account(host(1)), Handlers); got != Undivided-1 {
		t.Errorf("one host got %d, want all", got)
	}
}

func TestMemoryOfNewcomer(t *testing.T) {
	const limit = 1 << 20
	b := NewBook(Limits{Memory: limit})
	greedy := b.Account(host(1))
	if err := greedy.Take(Memory, limit); err == nil {
		t.Error("one host got all memory in one call")
	}
	fill(t, greedy, Memory)
	if err := b.Account(host(2)).Take(Memory, limit/FirstPart); err != nil {
		t.Errorf("a host that holds nothing: %v", err)
	}
	runtime.KeepAlive(greedy)
}

func TestOwnProcessHasNoLimit(t *testing.T) {
	b := NewBook(Limits{Handlers: 8})
	own := b.Account(Host{})
	for range 20 {
		if err := own.Take(Handlers, 1); err != nil {
			t.Fatal(err)
		}
	}
	own.Give(Handlers, 20)
}

func TestMostAndFair(t *testing.T) {
	b := NewBook(Limits{Connections: 30})
	small, large := b.Account(host(1)), b.Account(host(2))
	if b.Most(Connections) != nil {
		t.Error("Most of an empty book is not nil")
	}
	for range 3 {
		_ = small.Take(Connections, 1)
	}
	for range 12 {
		_ = large.Take(Connections, 1)
	}
	if b.Most(Connections) != large {
		t.Error("Most is not the host with most connections")
	}
	if got := small.Fair(Connections); got != 10 {
		t.Errorf("the fair share of two hosts and one more is %d, want 10", got)
	}
	if b.Near(Connections) {
		t.Error("15 of 30 count as near the limit")
	}
	runtime.KeepAlive(small)
	runtime.KeepAlive(large)
}

func TestForgotten(t *testing.T) {
	b := NewBook(Limits{})
	for n := range byte(100) {
		b.Account(host(n))
	}
	for range 100 {
		runtime.GC()
		b.mu.Lock()
		n := len(b.accounts)
		b.mu.Unlock()
		if n == 0 {
			return
		}
	}
	t.Error("accounts that nothing refers to are kept")
}

func TestTakeDoesNotAllocate(t *testing.T) {
	a := NewBook(Limits{Handlers: 100}).Account(host(1))
	if n := testing.AllocsPerRun(100, func() {
		if a.Take(Handlers, 1) == nil {
			a.Give(Handlers, 1)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestConcurrent(t *testing.T) {
	b := NewBook(Limits{Handlers: 50})
	var wg sync.WaitGroup
	for n := range byte(8) {
		wg.Go(func() {
			a := b.Account(host(n))
			for range 2000 {
				if a.Take(Handlers, 1) == nil {
					if used := b.Used(Handlers); used < 0 {
						t.Errorf("%d are used", used)
					}
					a.Give(Handlers, 1)
				}
			}
		})
	}
	wg.Wait()
	if used := b.Used(Handlers); used != 0 {
		t.Errorf("%d are used at the end", used)
	}
}

// TestModel compares random histories with the rule as the package's comment states it.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 200).Draw(t, "limit")
		b := NewBook(Limits{Queued: limit})
		const hosts = 5
		var accounts [hosts]*Account
		var held [hosts]int64
		for n := range accounts {
			accounts[n] = b.Account(host(byte(n)))
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.IntRange(0, hosts-1).Draw(t, "host")
				k := rapid.Int64Range(1, 4).Draw(t, "units")
				var total int64
				for _, h := range held {
					total += h
				}
				free, own, first := limit-total-k, held[n]+k, int64(1)
				if limit >= 32 {
					first = 2
				}
				want := free >= 0 && (limit < Undivided || own <= first || own <= 3*(free-limit/4))
				if got := accounts[n].Take(Queued, k) == nil; got != want {
					t.Fatalf("Take of %d with %v held of %d: granted %v, want %v", k, held, limit, got, want)
				} else if got {
					held[n] += k
				}
			},
			"give": func(t *rapid.T) {
				n := rapid.IntRange(0, hosts-1).Draw(t, "host")
				if held[n] == 0 {
					t.Skip("nothing is held")
				}
				accounts[n].Give(Queued, 1)
				held[n]--
			},
			"": func(t *rapid.T) {
				var total, holders int64
				for n, h := range held {
					total += h
					if h > 0 {
						holders++
					}
					if got := accounts[n].Used(Queued); got != h {
						t.Fatalf("host %d holds %d, want %d", n, got, h)
					}
				}
				if b.Used(Queued) != total || b.holders[Queued].Load() != holders {
					t.Fatalf("%d of %d holders, want %d of %d", b.Used(Queued), b.holders[Queued].Load(), total, holders)
				}
			},
		})
	})
}

func TestHostOf(t *testing.T) {
	for _, test := range []struct{ addr, want string }{
		{"192.0.2.7", "192.0.2.7"},
		{"::ffff:192.0.2.7", "192.0.2.7"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"fe80::1%eth0", "fe80::/64"},
		{"::1", "::/64"},
	} {
		if got := HostOf(netip.MustParseAddr(test.addr)).String(); got != test.want {
			t.Errorf("host of %s is %s, want %s", test.addr, got, test.want)
		}
	}
	if !HostOf(netip.Addr{}).IsZero() || HostOf(netip.Addr{}).String() != "this process" {
		t.Error("no address is not this process")
	}
	p := ProcessHost(1000, 42)
	if p.IsZero() || p.String() != "process 42 of uid 1000" || p == ProcessHost(1001, 42) {
		t.Errorf("a process is %v", p)
	}
}

func TestLimitErrorNamesCause(t *testing.T) {
	b := NewBook(Limits{Handlers: 8})
	a, other := b.Account(host(1)), b.Account(host(2))
	fill(t, a, Handlers)
	if err := a.Take(Handlers, 1); !strings.Contains(err.Error(), "127.0.0.1 holds 4 of 8 handlers") {
		t.Errorf("the host's share: %v", err)
	}
	if err := other.Take(Handlers, 9); !strings.Contains(err.Error(), "4 of 8 handlers are in use by all hosts") {
		t.Errorf("the limit: %v", err)
	}
}

func TestGiveTooMuchPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	NewBook(Limits{}).Account(host(1)).Give(Queued, 1)
}
