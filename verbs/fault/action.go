package fault

import (
	"fmt"
	"syscall"

	"cinnabar/verbs"
)

// Action is the fault that a rule injects. Programs make Actions with the functions of
// this package only.
type Action interface {
	String() string
	points() []Point
}

// Where the actions can be done.
var (
	atSend    = []Point{AtSend}
	atWork    = []Point{AtSend, AtRecv, AtSharedRecv}
	atConnect = []Point{AtDial, AtRequest}
	atAny     = []Point{AtSend, AtRecv, AtSharedRecv, AtDial, AtRequest, AtRegister, AtCreateCQ, AtCreateQP}
	atDelay   = []Point{AtSend, AtRecv, AtSharedRecv, AtDial, AtRequest}
)

// Status makes a work request end with s. A send has no effect at the peer; a
// receive is consumed by a message first. Unless s is success, the queue pair
// goes to ERR once the requests before are done, and the rest is flushed, as
// on a real device. Success on a send is a device that lies.
func Status(s verbs.WCStatus) Action { return status{s} }

type status struct{ status verbs.WCStatus }

func (a status) String() string  { return fmt.Sprintf("status %d (%v)", uint32(a.status), a.status) }
func (a status) points() []Point { return atWork }

// Drop loses a work request: it is never carried out and comes back only when
// the queue pair is flushed. A send that is lost blocks those behind it, since a
// queue completes in order; a lost receive lets messages take the next one.
func Drop() Action { return drop{} }

type drop struct{}

func (drop) String() string  { return "drop" }
func (drop) points() []Point { return atWork }

// Delay withholds the completion of a work request for this number of polls of
// its completion queue; later completions of the same queue wait behind it. A
// connection attempt or request is held up until [Injector.Advance] has been
// given as much in all since. A request that makes no completion is not affected.
func Delay(polls int) Action { return delay{polls} }

type delay struct{ polls int }

func (a delay) String() string  { return fmt.Sprintf("delay %d", a.polls) }
func (a delay) points() []Point { return atDelay }

// Reorder withholds the completion of a work request until n completions of
// other queue pairs have been taken from the same completion queue, or until so
// many polls in a row found nothing that none can be expected. The order within
// each queue is kept, as devices promise.
func Reorder(n int) Action { return reorder{n} }

type reorder struct{ others int }

func (a reorder) String() string  { return fmt.Sprintf("reorder behind %d", a.others) }
func (a reorder) points() []Point { return atWork }

// Duplicate carries a send work request out twice and completes it once, as
// a layer with at-least-once delivery would. It needs a free entry of the
// send queue; without one the second time is left out.
func Duplicate() Action { return duplicate{} }

type duplicate struct{}

func (duplicate) String() string  { return "duplicate" }
func (duplicate) points() []Point { return atSend }

// Disconnect breaks the connection when the requests before this one are done.
// The request and all behind it are flushed.
func Disconnect() Action { return disconnect{} }

type disconnect struct{}

func (disconnect) String() string  { return "disconnect" }
func (disconnect) points() []Point { return atSend }

// NotReady makes the peer seem to have no receive posted for this number of polls
// of the send completion queue; the request and those behind it wait. A negative
// number uses up the retries: StatusRNRRetryExcErr.
func NotReady(polls int) Action { return notReady{polls} }

type notReady struct{ polls int }

func (a notReady) String() string {
	if a.polls < 0 {
		return "not ready, retries used up"
	}
	return fmt.Sprintf("not ready for %d", a.polls)
}
func (a notReady) points() []Point { return atSend }

// Partial lets only the first n bytes of a write or read arrive before it ends
// with s as under [Status]. Other operations, which are whole or not at all,
// have no effect.
func Partial(n int, s verbs.WCStatus) Action { return partial{n, s} }

type partial struct {
	n      int
	status verbs.WCStatus
}

func (a partial) String() string  { return fmt.Sprintf("partial %d, status %v", a.n, a.status) }
func (a partial) points() []Point { return atSend }

// Overrun makes the completion queue overrun with the completion of this
// request, which is lost with all that follow; EventCQErr is raised and the
// queue pairs that use the queue go to ERR.
func Overrun() Action { return overrun{} }

type overrun struct{}

func (overrun) String() string  { return "overrun" }
func (overrun) points() []Point { return atWork }

// Raise raises an asynchronous event about the queue, its completion queue, its
// shared receive queue or port 1, as the type requires, and lets the work
// request be. It combines with other rules.
func Raise(t verbs.EventType) Action { return raise{t} }

type raise struct{ event verbs.EventType }

func (a raise) String() string  { return fmt.Sprintf("raise %v", a.event) }
func (a raise) points() []Point { return atWork }

// Fail makes the call return err, and nothing is done. A connection request that
// fails is refused and Accept of the listener returns err.
func Fail(err error) Action { return fail{err} }

type fail struct{ err error }

func (a fail) String() string  { return fmt.Sprintf("fail: %v", a.err) }
func (a fail) points() []Point { return atAny }

// Refuse makes a dial fail as if no listener had the address.
func Refuse() Action { return Fail(syscall.ECONNREFUSED) }

// Reject refuses a connection with private data: a dial fails with
// *verbs.RejectedError, a request is rejected before the program sees it.
func Reject(privateData []byte) Action { return reject{string(privateData)} }

type reject struct{ data string }

func (a reject) String() string  { return fmt.Sprintf("reject with %d bytes", len(a.data)) }
func (a reject) points() []Point { return atConnect }

// Ignore leaves a connection attempt without an answer. A dial waits until its
// context ends, and its request does not reach the peer. A listener keeps a
// request from the program, and rejects it when the listener is closed.
func Ignore() Action { return ignore{} }

type ignore struct{}

func (ignore) String() string  { return "ignore" }
func (ignore) points() []Point { return atConnect }
