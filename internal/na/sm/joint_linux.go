package sm

import (
	"slices"
	"sync"
	"sync/atomic"

	"cinnabar/internal/progress"
	"cinnabar/internal/shm"
)

// joint is the receiver that all endpoints of the process share.
var joint jointReceiver

// jointReceiver receives for several callers of the process that wait for different conns at the same time.
//
// A single caller receives from its conn itself (drive), because that is the fastest way. If several callers did so, one of them would spin,
// and the others would park until their servers had written to eventfds and Go's scheduler had looked at the network, which the scheduler does
// every 10 ms while all its threads are busy. The spinning caller would get hundreds of responses meanwhile. So all of them park, and one
// goroutine receives from all their conns. The goroutine ends when a spin ends without a message, or when only one conn has messages. A conn with
// messages for which no caller waits, such as requests of its peer, goes back to the poller, because the goroutine would otherwise go on for
// these messages and hold the right to spin, of which the process has one.
type jointReceiver struct {
	driver  atomic.Uint64 // conn.serial of the conn that a caller drives, 0 if there is none
	running atomic.Bool   // true while the goroutine exists; written with mu held
	// receiving is the conn from which the goroutine has received last. It is nil while the goroutine lets callers run.
	receiving atomic.Pointer[conn]

	mu sync.Mutex
	// members are the conns that the goroutine receives from. They stay claimed.
	// +checklocks:mu
	members []*conn
}

// serials counts the conns of the process.
var serials atomic.Uint64

// wanted reports whether a caller that waits for c leaves the receiving to the goroutine: the goroutine exists already, or another caller drives
// another conn.
func (j *jointReceiver) wanted(c *conn) bool {
	if c.self {
		return false
	}
	driver := j.driver.Load()
	return driver != 0 && driver != c.serial || j.running.Load()
}

// join makes c a member, so that its caller can park. It returns false if the goroutine cannot receive from c.
func (j *jointReceiver) join(c *conn) bool {
	if c.role.joined.Load() && j.running.Load() {
		return true // if the goroutine ends or dismisses c now, it hands c to the poller
	}
	if !c.ep.cfg.Progress.MaySpin() || !c.enter() {
		return false
	}
	alive := !c.dead.Load()
	if alive {
		c.takeClaim() // so that the server rings no doorbell
	}
	c.leave()
	if alive {
		j.add(c)
	}
	return alive
}

// add adds c to the members, and starts the goroutine if there is none.
func (j *jointReceiver) add(c *conn) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !c.role.joined.Load() {
		c.role.joined.Store(true)
		j.members = append(j.members, c)
	}
	if !j.running.Load() {
		j.running.Store(true)
		go j.run(c.ep.cfg.Progress)
	}
}

const (
	// jointAlone is the number of messages in a row from one conn after which the goroutine ends, because the caller of that conn receives
	// faster by itself.
	jointAlone = 64
	// jointUnasked is the number of messages in a row from a conn, received while no operation waited for its peer, after which the conn goes
	// back to the poller.
	jointUnasked = 64
	// jointStart is the number of rounds without a message for which the goroutine goes on although it may not spin, because a caller that still
	// drives holds the right to spin.
	jointStart = 256
)

// run is the goroutine. It spins by the policy of the caller that has started it.
func (j *jointReceiver) run(policy *progress.Policy) {
	var (
		spins progress.Source
		list  []*conn
		last  *conn // the sender of the latest message
	)
	spins.Init(policy, progress.Memory)
	s := spins.Spin(true)
	defer s.End()
	for alone, vain := 0, 0; alone < jointAlone; {
		if list = j.present(list); len(list) == 0 {
			break
		}
		got := false
		for _, c := range list {
			n := c.receiveJointly()
			if c.role.unasked >= jointUnasked {
				j.dismiss(c)
			}
			switch {
			case n == 0:
				continue
			case c == last:
				alone += n
			default:
				last, alone = c, 0
			}
			got = true
		}
		switch {
		case got:
			vain = 0
			s.Found()
			j.receiving.Store(nil)
			policy.HandOver() // so that the callers run
			continue
		case s.Vain():
		case vain < jointStart && j.driver.Load() != 0:
			vain++
		default:
			alone = jointAlone
		}
		shm.Pause(1)
	}
	j.dissolve()
}

// present removes the members that have failed, and returns the others in list.
func (j *jointReceiver) present(list []*conn) []*conn {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.members = slices.DeleteFunc(j.members, func(c *conn) bool { return c.dead.Load() })
	return append(list[:0], j.members...)
}

// receiveJointly receives the messages that have come to c, and returns their number. It does nothing while another goroutine has the role.
func (c *conn) receiveJointly() int {
	if !c.enter() {
		return 0
	}
	defer c.leave()
	if c.dead.Load() {
		return 0
	}
	c.takeClaim() // again, because a caller may have ended the claim
	asked := c.addr.expected.Len() > 0
	joint.receiving.Store(c)
	n := c.receive(receiveBatch)
	if c.role.unasked += n; asked {
		c.role.unasked = 0
	}
	if n > 0 {
		c.spins.Answered()
		c.operations()
		c.detachTasks()
	}
	return n
}

// receivesFrom reports whether the goroutine may be receiving from the peer a. A transfer with a that begins meanwhile must not run on the
// goroutine that starts it, because that may be the goroutine of j. An access to the peer's memory may block for as long as the peer wants, and
// the callers of all other peers would wait meanwhile.
func (j *jointReceiver) receivesFrom(a *Addr) bool {
	c := j.receiving.Load()
	return c != nil && c.addr == a
}

// dissolve ends the goroutine, and leaves the members to the pollers of their endpoints.
func (j *jointReceiver) dissolve() {
	j.mu.Lock()
	list := j.members
	j.members = nil
	j.receiving.Store(nil)
	for _, c := range list {
		c.role.joined.Store(false)
	}
	j.running.Store(false)
	j.mu.Unlock()
	for _, c := range list {
		c.leaveToPoller()
	}
}

// dismiss removes c from the members, and leaves it to the poller.
func (j *jointReceiver) dismiss(c *conn) {
	j.mu.Lock()
	j.members = slices.DeleteFunc(j.members, func(o *conn) bool { return o == c })
	c.role.joined.Store(false)
	j.mu.Unlock()
	c.role.unasked = 0
	c.leaveToPoller()
}

// leaveToPoller ends the claim of a conn that is no member any more, so that its peer rings the doorbell again.
func (c *conn) leaveToPoller() {
	c.releaseClaim()
	if c.ep.expects() {
		c.ep.poll.wake() // so that the poller goes on spinning
	}
}
