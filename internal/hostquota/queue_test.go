package hostquota

import (
	"net/netip"
	"slices"
	"testing"
)

// TestQueue checks that hosts take turns, each with its values in order, and that removed values are left out.
func TestQueue(t *testing.T) {
	b := NewBook(Limits{})
	var hosts []*Account
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		hosts = append(hosts, b.Account(HostOf(netip.MustParseAddr(a))))
	}
	var q Queue[string]
	var removed []Ticket
	for _, v := range []struct {
		host   int
		name   string
		remove bool
	}{{0, "a1", false}, {0, "a2", false}, {0, "a3", true}, {0, "a4", false}, {1, "b1", false}, {2, "c1", true}, {1, "b2", false}} {
		if ticket := q.Push(hosts[v.host], v.name); v.remove {
			removed = append(removed, ticket)
		}
	}
	for _, ticket := range removed {
		q.Remove(ticket)
	}
	if q.Len() != 5 || q.Hosts() != 2 {
		t.Errorf("%d values of %d hosts, want 5 of 2", q.Len(), q.Hosts())
	}
	var got []string
	for v, ok := q.Next(); ok; v, ok = q.Next() {
		if got = append(got, v); v == "a2" {
			q.Push(hosts[2], "c2") // a host that comes later waits for one value of each other host
		}
	}
	if want := []string{"a1", "b1", "a2", "b2", "a4", "c2"}; !slices.Equal(got, want) {
		t.Errorf("the values came in the order %v, want %v", got, want)
	}
	if len(q.byHost) != 0 || q.Hosts() != 0 || q.Len() != 0 {
		t.Errorf("%d hosts have a turn in an empty queue", len(q.byHost))
	}
}
