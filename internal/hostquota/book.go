package hostquota

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"weak"

	"cinnabar/internal/invariants"
)

// Resource is one kind of thing that remote hosts hold.
type Resource uint8

// The resources that are counted. All but Memory are counts.
const (
	Connections Resource = iota // connections after the peer has identified itself, and transfers and sessions that stand for one
	Handshakes                  // connections before the peer has identified itself
	Handlers                    // handlers that have begun and not returned
	Queued                      // requests that wait for a handler
	Unsent                      // responses that wait for the network
	Pulls                       // arguments that are being fetched
	Memory                      // bytes: overflow, lent memory, buffers
	Regions                     // lent regions, and further registrations of them
	numResources
)

var names = [numResources]string{
	Connections: "connections", Handshakes: "unfinished handshakes", Handlers: "handlers", Queued: "queued requests",
	Unsent: "unsent responses", Pulls: "arguments being fetched", Memory: "bytes of memory", Regions: "regions",
}

// String returns the name that errors use: "connections", "bytes of memory".
func (r Resource) String() string {
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("resource %d", uint8(r))
}

const (
	// Undivided is the limit below which a resource is not divided into shares.
	Undivided = 8
	// FirstPart is the part of a limit, one in so many, that a host may hold however much the others hold.
	FirstPart = 128
	// firstTwo is the limit from which on that is two units at least, because a program that does one thing after another
	// begins the next before the unit of the last one has come back.
	firstTwo = 32
	// share is how many units a host may hold for each unit of the common part that stays free.
	share = 3
)

// Limits are the largest totals of a [Book], indexed by [Resource]; 0: the resource is counted and not limited.
type Limits [numResources]int64

// Book counts resources for the hosts of one engine, device or receiver.
type Book struct {
	limits  Limits
	used    [numResources]atomic.Int64
	holders [numResources]atomic.Int64 // accounts that hold any
	refused [numResources]atomic.Uint64

	mu invariants.Mutex
	// accounts finds the one account of each host while anything refers to it.
	// +checklocks:mu
	accounts map[Host]weak.Pointer[Account]
}

// NewBook returns a Book in which nothing is held.
func NewBook(l Limits) *Book {
	b := &Book{limits: l}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accounts = map[Host]weak.Pointer[Account]{}
	return b
}

// Account returns the account of a host. All calls for one host return the same Account for as long as a caller keeps
// it, so a caller of Take must keep the Account until it has given all units back.
func (b *Book) Account(h Host) *Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[h].Value(); a != nil {
		return a
	}
	a := &Account{book: b, host: h, key: h}
	b.accounts[h] = weak.Make(a)
	runtime.AddCleanup(a, b.forget, h)
	return a
}

// forget removes a host if nothing refers to its account.
func (b *Book) forget(h Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, ok := b.accounts[h]; ok && p.Value() == nil {
		delete(b.accounts, h)
	}
}

// Limit returns the largest total of r; 0: none.
func (b *Book) Limit(r Resource) int64 { return b.limits[r] }

// Used returns how much of r all hosts hold together.
func (b *Book) Used(r Resource) int64 { return b.used[r].Load() }

// Holders returns the number of hosts that hold any of r. This process counts as one more host if it holds any of r.
func (b *Book) Holders(r Resource) int64 { return b.holders[r].Load() }

// Refused returns how many times Take refused r.
func (b *Book) Refused(r Resource) uint64 { return b.refused[r].Load() }

// Near reports whether less than an eighth of the limit of r is free.
func (b *Book) Near(r Resource) bool {
	l := b.limits[r]
	return l != 0 && b.used[r].Load() > l-l/8
}

// Most returns the account that holds most of r, and nil if none holds any.
func (b *Book) Most(r Resource) *Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	var most *Account
	for _, p := range b.accounts {
		if a := p.Value(); a != nil && a.Used(r) > 0 && (most == nil || a.Used(r) > most.Used(r)) {
			most = a
		}
	}
	return most
}

// Account counts the units of each resource that one host holds.
type Account struct {
	book *Book
	host Host
	key  any // host
	used [numResources]atomic.Int64
}

// Host returns the host that the account belongs to.
func (a *Account) Host() Host { return a.host }

// Key returns the host as a comparable value. It does not allocate.
func (a *Account) Key() any { return a.key }

// Book returns the Book that the account stands in.
func (a *Account) Book() *Book { return a.book }

// Used returns how much of r the host holds.
func (a *Account) Used(r Resource) int64 { return a.used[r].Load() }

// Fair returns how much of r the host could hold if the limit were divided evenly among the hosts that hold any and one
// more. A host that holds less must lose nothing to make room.
func (a *Account) Fair(r Resource) int64 { return a.book.limits[r] / (a.book.holders[r].Load() + 1) }

// Take counts n units of r for the host, n > 0. It returns a [*LimitError] and counts nothing if the total would exceed
// the limit, or the host its share. Each Take that returns nil is followed by one Give, or several that add up to n.
func (a *Account) Take(r Resource, n int64) error {
	b := a.book
	limit := b.limits[r]
	unlimited := limit == 0 || a.host.IsZero()
	if !a.May(r, n) {
		return a.refuse(r, n, b.used[r].Load(), a.used[r].Load()) // without counting n, because another Take would be refused meanwhile, and the sum may overflow
	}
	total, own := b.used[r].Add(n), a.used[r].Add(n)
	if own == n {
		b.holders[r].Add(1)
	}
	if unlimited || Grants(limit, total, own) {
		return nil
	}
	a.Give(r, n)
	return a.refuse(r, n, total-n, own-n)
}

// May reports whether Take would grant the host n more units of r, n > 0, at this moment.
func (a *Account) May(r Resource, n int64) bool {
	b := a.book
	limit := b.limits[r]
	if limit == 0 || a.host.IsZero() {
		return true
	}
	total, own := b.used[r].Load(), a.used[r].Load()
	return n <= limit-total && Grants(limit, total+n, own+n)
}

// refuse counts that n units were not granted while all hosts held total of them, and this one own.
func (a *Account) refuse(r Resource, n, total, own int64) error {
	a.book.refused[r].Add(1)
	limit := a.book.limits[r]
	return &LimitError{Resource: r, Host: a.host, Held: own, Asked: n, Limit: limit, Free: max(0, limit-total)}
}

// Grants reports whether a host may hold own units of a limit, of which all hosts would hold total with it. [Account.Take]
// goes by it, and so do users that count under a lock of their own.
func Grants(limit, total, own int64) bool {
	common := limit - limit/4
	return total <= limit && (limit < Undivided || own <= FirstOf(limit) || (own+share-1)/share <= common-total)
}

// Most returns how many units of a limit a host may hold while the others hold so many.
func Most(limit, others int64) int64 {
	if limit < Undivided {
		return limit - others
	}
	common := max(0, limit-limit/4-others)
	return min(limit-others, max(FirstOf(limit), common-(common+share)/(share+1)))
}

// FirstOf returns how many units of a limit any host may hold for as long as anything is free.
func FirstOf(limit int64) int64 {
	if limit >= firstTwo {
		return max(2, limit/FirstPart)
	}
	return max(1, limit/FirstPart)
}

// Give takes n units back that Take has counted.
func (a *Account) Give(r Resource, n int64) {
	left := a.used[r].Add(-n)
	if left < 0 {
		panic("hostquota: more is given back than was taken: " + r.String())
	}
	if left == 0 {
		a.book.holders[r].Add(-1)
	}
	a.book.used[r].Add(-n)
}

// LimitError is the error of an [Account.Take] that is not granted.
type LimitError struct {
	Resource Resource
	Host     Host
	Held     int64 // by the host
	Asked    int64 // by this call, beyond Held
	Limit    int64 // of all hosts together
	Free     int64 // of Limit
}

// Error names the host, the units that it holds, and the limit. The caller adds the setting that raises it.
func (e *LimitError) Error() string {
	if e.Asked > e.Free {
		return fmt.Sprintf("%d of %d %s are in use by all hosts", e.Limit-e.Free, e.Limit, e.Resource)
	}
	return fmt.Sprintf("%v holds %d of %d %s, and the %d that are free are kept for other hosts", e.Host, e.Held, e.Limit, e.Resource, e.Free)
}
