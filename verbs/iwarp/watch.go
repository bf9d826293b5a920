package iwarp

// Look implements [progress.Watched]. It ends the claim, so that the background reader reads again, if the program has stopped polling without
// arming the queue and no goroutine has the seat.
func (c *conn) Look() (again bool) {
	if !c.claim.Quiet(true, false) {
		return c.claim.Taken()
	}
	if !c.seat.taken.Load() {
		c.endClaim()
	}
	return false
}

// Depends implements [progress.Watched]. It returns false while a goroutine has the seat, because that goroutine reads. leaveSeat adds the
// connection to the watcher's list again.
func (c *conn) Depends() bool { return c.claim.Taken() && !c.seat.taken.Load() }

// watched adds c to the watcher's list after its claim was taken, or ends the claim if the watcher is closed.
func (c *conn) watched() {
	if !c.qp.recvCQ.watch.Add(&c.watch) {
		c.endClaim()
	}
}
