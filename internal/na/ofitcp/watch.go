package ofitcp

// Look implements [progress.Watched]. It ends a claim without drivers, and replaces the background goroutine if that is in the same task
// as at the last look. It returns true if c has had traffic since then.
func (c *conn) Look() (again bool) {
	r := &c.role
	quiet, begun := r.claim.Quiet(), r.tasks.Begun()
	again = !quiet || begun != r.watchedTask
	if quiet && !r.held.Load() {
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
