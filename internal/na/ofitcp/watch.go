package ofitcp

// Look implements [progress.Watched]. It ends a claim that no driver has used for some looks, and replaces the background goroutine if this goroutine is in
// the same task as at the last look. It returns true if c had a driver in these looks, or has a new task.
func (c *conn) Look() (again bool) {
	r := &c.role
	driven := r.claim.Taken() && r.held.Load() && !c.dead.Load() // because the read role of a dead connection stays held
	waits := r.yielded.Load() || c.expects.Load() > 0 || c.moving.Load() > 0 || c.peer.expected.Len() > 0
	quiet, begun := r.claim.Quiet(waits, driven), r.tasks.Begun()
	again = !quiet || begun != r.watchedTask
	if quiet {
		c.handBack()
	}
	if begun == r.watchedTask {
		c.takeOver(begun)
	}
	r.watchedTask = begun
	return again
}

// Depends implements [progress.Watched].
func (c *conn) Depends() bool { return c.role.claim.Taken() || c.role.tasks.Pending() }

// watch adds c to the watcher's list. The caller has claimed c, or is about to run tasks. If the watcher is closed, watch ends the claim.
func (c *conn) watch() {
	if !c.ep.watch.Add(&c.role.watch) {
		c.handBack()
	}
}
