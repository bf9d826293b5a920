package sm

import (
	"errors"
	"log/slog"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// The server's side of connecting. Only the poller calls these functions.

// datagramBatch is the number of datagrams that the poller reads before it turns to messages. It exceeds the capacity of the
// socket, so that the socket has room afterwards.
const datagramBatch = 64

// acceptBatch is the largest number of new connections among them, because each takes some tens of microseconds, and a process that
// connects and leaves without end delays the messages of others for that time.
const acceptBatch = 2

// readSocket receives the datagrams of clients and executes their commands. It reports whether datagrams may be left.
func (e *Endpoint) readSocket() (more bool) {
	e.offenders.refresh(time.Now())
	accepted := e.stats.connections.Load()
	for range datagramBatch {
		if e.stats.connections.Load() >= accepted+acceptBatch {
			return true // the epoll set reports the socket again while datagrams are left
		}
		d, ok, err := receiveDatagram(e.sock)
		if !ok {
			if err != nil && e.mayLog(e.own) {
				e.cfg.Logger.Warn("the endpoint's socket cannot be read", keyError, err)
			}
			return false
		}
		if err == nil {
			err = e.execute(&d)
		}
		d.close()
		if err != nil {
			e.noteFault(&d, err)
		}
	}
	return true
}

// identifyBatches is the largest number of batches of datagrams that awaitIdentity reads. The socket cannot hold so many.
const identifyBatches = 8

// awaitIdentity reads the datagrams in the socket, among them that of a client whose command was read from the ring. The poller calls it before it
// delivers the first message of the client, because the client has sent the datagram, to which the kernel attaches the credentials, before that
// message. Datagrams can end conns, so the poller must not have the receive role. A client that never sleeps sends no datagram, and its identity
// stays of kind Unknown.
func (e *Endpoint) awaitIdentity(c *conn) {
	if !c.enter() {
		return
	}
	waits := c.ready()
	c.leave()
	if !waits || e.identifying {
		return
	}
	c.searched = true
	e.identifying = true // because a datagram that ends a conn delivers its messages first
	defer func() { e.identifying = false }()
	for range identifyBatches {
		if !e.readSocket() {
			return
		}
	}
}

// noteFault counts a faulty command for its sender. It logs a description of the command unless the sender has reached maxFaults.
func (e *Endpoint) noteFault(d *datagram, err error) {
	n := e.offenders.note(d.pid)
	if n == 0 || n > maxFaults {
		e.stats.violations.Add(1)
		e.cfg.Audit.Count(audit.Broken, causeManyFaults)
		return
	}
	e.reportViolation(e.senderOf(d), err)
}

// execute executes the command of a datagram. It takes those descriptors out of d that it keeps.
func (e *Endpoint) execute(d *datagram) error {
	ident := d.cmd.ident()
	switch {
	case !d.creds:
		return violated(causeCredentials, "a command without its sender's credentials, which the kernel adds")
	case !trustedUser(d.uid):
		return violated(causeUser, "a command from user %d", d.uid)
	case d.pid > 0 && d.pid != ident.pid: // 0: of another PID namespace
		return violated(causeCredentials, "a command that names process %d, from process %d", ident.pid, d.pid)
	}
	switch d.cmd.kind() {
	case commandReserved:
		// The client has put the same command into the ring before. It must not stay there until another client has the pair.
		defer e.drainCommands(commandSlots)
		return e.reserve(d.cmd, d)
	case commandReleased:
		return e.release(d.cmd, false)
	}
	return violated(causeCommand, "a command of kind %d", d.cmd.kind())
}

// commandBatch is the number of commands that the poller takes from the ring before it turns to messages, because clients can put
// commands there without end.
const commandBatch = 16

// drainCommands takes at most limit commands out of the command ring and executes them. Clients that never sleep send commands in no
// other way. It reports whether there were any.
func (e *Endpoint) drainCommands(limit int) (any bool) {
	if !e.commandsWaiting() {
		return false
	}
	for range limit {
		var cmd command
		ok := false
		if e.region.read(func() { cmd, ok = e.region.commands.pop() }) != nil || !ok {
			return any
		}
		any = true
		var err error
		switch cmd.kind() {
		case commandReserved:
			err = e.reserve(cmd, nil)
		case commandReleased:
			err = e.release(cmd, true)
		default:
			err = violated(causeCommand, "a command of kind %d in the command ring", cmd.kind())
		}
		if err != nil {
			e.reportViolation(e.newAddr(cmd.ident(), cmd.ident().uri()), err)
		}
	}
	return any
}

// commandsWaiting reports whether the command ring holds a command.
func (e *Endpoint) commandsWaiting() (yes bool) {
	if e.region == nil {
		return false
	}
	err := e.region.read(func() { yes = e.region.commands.waiting() })
	return yes && err == nil
}

// reserve connects a client. d is the datagram of the command, nil if the command was in the ring: then the client is one that never
// sleeps, or its datagram has not come yet.
func (e *Endpoint) reserve(cmd command, d *datagram) error {
	ident, pair := cmd.ident(), cmd.pair()
	if pair == ownPair || ident.pid <= 0 {
		return violated(causeConnect, "process %d connects by pair %d", ident.pid, pair)
	}
	if d == nil && e.cfg.Admit != nil {
		return nil // the datagram has the identity of the client
	}
	old := e.clientOf(pair)
	if old != nil && !old.leftFor(ident, d) {
		return e.reserveAgain(old, cmd, d)
	}
	var claimed bool
	var claimant uint64
	if err := e.region.read(func() {
		if claimed = e.region.claimed(pair); claimed && e.region.extended {
			claimant = e.region.claimant(pair).Load()
		}
	}); err != nil {
		return err
	}
	switch {
	case !claimed && d == nil:
		return nil // the client has released the pair in the meantime
	case !claimed:
		return violated(causeConnect, "a connection by pair %d, which is not claimed", pair)
	case claimant != 0 && claimant != asClaimant(ident):
		return violated(causeConnect, "a connection by pair %d, which process %d has claimed", pair, int32(claimant))
	}
	if old != nil && !old.handOver() {
		return violated(causeConnect, "a connection by pair %d, which is in use", pair)
	}
	if e.refusing.Load() { // release the pair, by which the client sees the refusal
		return e.region.read(func() { e.region.giveUpPair(pair) })
	}
	return e.acceptClient(cmd, d)
}

// leftFor reports whether c's client has given its pair back without a command. That is certain if c was made from the command ring
// alone, and the kernel now names another process, ident, as the sender of a datagram that connects by the same pair.
func (c *conn) leftFor(ident identity, d *datagram) bool {
	return d != nil && c.provisional && c.addr.ident != ident && !c.dead.Load()
}

// handOver ends c, because another client has claimed c's pair. The pair stays claimed and its rings keep their messages, because
// these may be the other client's. It returns false if c has ended before.
func (c *conn) handOver() bool {
	if !c.takeRole() {
		return false
	}
	c.handedOver = true
	c.fail(na.Unreachable, errReleased)
	c.leave()
	return true
}

// reserveAgain handles another command for a pair that has a conn.
func (e *Endpoint) reserveAgain(old *conn, cmd command, d *datagram) error {
	switch {
	case d == nil:
		return nil // the datagram was first, or the command is of an earlier client of the pair
	case old.dead.Load():
		return violated(causeConnect, "a connection by pair %d, which is kept from use", cmd.pair())
	case old.provisional && old.addr.ident == cmd.ident():
		return old.promote(d)
	case old.addr.ident == cmd.ident():
		return nil
	}
	return violated(causeConnect, "a connection by pair %d, which is process %d's", cmd.pair(), old.addr.ident.pid)
}

// acceptClient makes the conn of a client.
func (e *Endpoint) acceptClient(cmd command, d *datagram) error {
	ident := cmd.ident()
	a := e.newAddr(ident, ident.uri())
	if d != nil {
		a.uid = d.uid
		a.identify(d.uid, d.pid)
	} else if err := checkProcess(ident.pid, 0); err != nil { // the command ring says nothing about its writer
		return violated(causeUser, "a command in the command ring: %v", err)
	}
	c := &conn{
		ep: e, addr: a, reg: e.region, pair: cmd.pair(), server: true, pid: ident.pid, recvEvent: -1, pidfd: -1,
		done: make(chan struct{}), scratch: make([]byte, bufferSize), provisional: d == nil,
	}
	if err := c.attach(); err != nil {
		return err
	}
	if d != nil && cmd.extension() == extensionVersion && e.region.extended {
		c.extend()
	}
	if err := c.takeEventfds(d); err != nil {
		return err // the pair stays taken: its client may be about to write there
	}
	pidfd, gone := openProcess(ident.pid)
	c.pidfd = pidfd
	refusal, cause := gone, "descriptors"
	switch {
	case d != nil && d.cut:
		refusal = errNoDescriptors
	case !errors.Is(refusal, errNoDescriptors):
		refusal, cause = e.take(c), "share"
	}
	if refusal == nil {
		c.probeMemory()
	}
	asks := e.cfg.Admit != nil
	c.role.held.Store(asks) // so that no message is read before the client is admitted
	if !e.addConn(c) {      // the endpoint is closing
		c.share.give()
		c.closeEventfds()
		closeAll(c.pidfd)
		return nil
	}
	a.last.Store(c)
	a.conn.Store(c)
	a.activateConn()
	if err := c.watchFDs(); err != nil && refusal == nil {
		refusal = err
	}
	switch {
	case refusal != nil:
		c.refuse(cause, refusal)
	case !asks:
		e.cfg.Audit.Record(audit.Accepted, "client", e.hosts(a.ident, a.uid), slog.String(keyPeer, a.String()))
		if gone != nil {
			e.drainAndEnd(c, &ending{kind: na.Unreachable, err: errDied})
			return nil
		}
		e.makeRoom(time.Now())
	case gone != nil: // its messages are not delivered, because the program has not admitted it
		c.ending.Store(&ending{kind: na.Unreachable, err: errDied})
		c.fail(na.Unreachable, errDied)
	default:
		e.makeRoom(time.Now())
		c.startAdmission()
		return nil
	}
	if asks {
		c.leave()
	}
	return nil
}

// causeAdmit is the cause of a refusal by the program.
const causeAdmit = "a client that Config.Admit does not admit"

// startAdmission starts a goroutine that asks the program about the client of a new conn, and hands it the receive role of the conn. If the
// endpoint is closing, no program is asked any more, and startAdmission ends the conn with a notice before it gives up the role, because the poller
// would otherwise read messages of a client that is not admitted.
func (c *conn) startAdmission() {
	c.admission.Lock()
	c.asked = true
	c.admission.Unlock()
	if c.ep.spawn(c.askAdmission) {
		return
	}
	c.admitted(errEndpointCloses)
}

// errEndpointCloses is the reason for the refusal of a client about which the program is not asked any more.
var errEndpointCloses = errors.New("the endpoint is being closed")

// askAdmission lets the program accept or refuse the client of a new conn. It has the receive role of the conn meanwhile, and gives it up.
func (c *conn) askAdmission() {
	e, a := c.ep, c.addr
	c.admitted(e.cfg.Admit.Admit(e.life, e.hosts(a.ident, a.uid), a.Identity()))
	e.poll.wake() // for the messages that have come meanwhile
}

// admitted accepts the client of a new conn, or refuses it if err is not nil, and gives up the receive role of the conn.
func (c *conn) admitted(err error) {
	c.admission.Lock()
	defer c.admission.Unlock()
	c.asked = false
	if err != nil {
		c.refuse(causeAdmit, err)
	} else {
		c.ep.cfg.Audit.Record(audit.Accepted, "client", c.ep.hosts(c.addr.ident, c.addr.uid), slog.String(keyPeer, c.addr.String()))
	}
	c.leave()
}

// takeEventfds takes both eventfds out of a datagram: the client writes to the first, the server to the second.
func (c *conn) takeEventfds(d *datagram) error {
	if d == nil || len(d.fds) == 0 {
		return nil
	}
	if len(d.fds) != 2 {
		return violated(causeDescriptors, "a connection with %d descriptors; there are 2 or none", len(d.fds))
	}
	for _, fd := range d.fds {
		if !isEventfd(fd) {
			return violated(causeDescriptors, "a connection with a descriptor that is no eventfd")
		}
	}
	c.recvEvent, c.doorbell, d.fds = d.fds[0], shm.NewDoorbell(d.fds[1]), nil
	return nil
}

// promote gives their doorbells to a client that the server has treated as one without doorbells, because its datagram came late. It
// rings for the messages that were sent before.
func (c *conn) promote(d *datagram) error {
	if !c.takeRole() {
		return nil
	}
	defer c.leave()
	if d.cut {
		return errNoDescriptors
	}
	c.addr.mu.Lock()
	err := c.takeEventfds(d)
	c.provisional = false
	c.addr.identify(d.uid, d.pid)
	c.share.endHandshake()
	if n := min(c.unsignaled, ringSlots); err == nil && n > 0 { // if more messages were sent than the ring holds, the client has read the others
		c.signalPeer(n)
	}
	c.unsignaled = 0
	c.addr.mu.Unlock()
	if err == nil && c.recvEvent >= 0 {
		err = c.ep.poll.add(c.recvEvent, recvEvents, eventRecv, c.id)
	}
	return err
}

// release ends the connection of a client at its command. fromRing reports whether the command was in the ring, where any process can
// put it. The ring is accepted only from a client that has sent no datagram.
func (e *Endpoint) release(cmd command, fromRing bool) error {
	c := e.clientOf(cmd.pair())
	if c == nil || c.addr.ident != cmd.ident() {
		return nil // it has been released by other means
	}
	if fromRing && !c.provisional {
		return violated(causeCredentials, "a command in the command ring that ends the connection of process %d, which sends its commands to the socket", cmd.ident().pid)
	}
	if c.dead.Load() {
		e.freePair(c)
		return nil
	}
	e.drainAndEnd(c, &ending{kind: na.Unreachable, err: errReleased})
	return nil
}

// processEnded ends the conn with that id, because the process of its peer has ended.
func (e *Endpoint) processEnded(id int32) {
	c := e.connOf(id)
	switch {
	case c == nil:
	case c.dead.Load():
		e.freePair(c)
	default:
		e.drainAndEnd(c, &ending{kind: na.Unreachable, err: errDied})
	}
}

// drainVisits is the number of receive batches after which drainAndEnd stops. A full ring has fewer.
const drainVisits = ringSlots/receiveBatch + 2

// drainAndEnd delivers the messages that a peer sent before it left, and ends its conn. If another goroutine has the conn's
// receive role, that goroutine ends it.
func (e *Endpoint) drainAndEnd(c *conn, why *ending) {
	c.ending.Store(why)
	for range drainVisits {
		if c.dead.Load() {
			return
		}
		e.poll.visit(c)
	}
	if !c.role.held.Load() {
		c.fail(why.kind, why.err)
	}
}

// senderOf returns the address that a datagram names as its sender, for the log. The process is the one that the kernel names, if it
// names one.
func (e *Endpoint) senderOf(d *datagram) *Addr {
	ident := d.cmd.ident()
	if d.creds {
		ident.pid = d.pid
	}
	a := e.newAddr(ident, ident.uri())
	if d.creds {
		a.uid = d.uid
	}
	return a
}

// Limits on the faulty commands that the server describes in log and audit. A description takes several times as long as the
// reading of the command, and the socket holds few commands (net.unix.max_dgram_qlen, 10), so a server that described each one
// would leave the socket full, and other clients could not connect.
const (
	maxFaults   = 32                     // described commands of one process in one faultWindow; the rest is only counted
	faultWindow = 250 * time.Millisecond // after this time the counts of all processes start at 0 again
	maxFaulty   = 256                    // processes with a count of their own; commands of others are not described
)

// offenders counts the faulty commands of each process in the present window. The kernel names the senders. The poller owns it.
type offenders struct {
	since  time.Time     // begin of the window
	faults map[int32]int // by process id; processes of other PID namespaces share id 0
}

// note counts a faulty command of process pid. It returns the process's count in this window, or 0 if the process has no count of
// its own.
func (o *offenders) note(pid int32) int {
	if _, known := o.faults[pid]; !known && len(o.faults) >= maxFaulty {
		return 0
	}
	if o.faults == nil {
		o.faults = make(map[int32]int)
	}
	o.faults[pid]++
	return o.faults[pid]
}

// refresh starts a new window if the present one has ended.
func (o *offenders) refresh(now time.Time) {
	if now.Sub(o.since) >= faultWindow {
		o.since = now
		clear(o.faults)
	}
}
