package ofiverbs

import (
	"testing"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// halfway starts the making of a connection of client to r for a request, which waits. It returns the connection that the device has made,
// and the attempt, as they are before [peer.connected].
func halfway(t *testing.T, r *rawPeer, client *Endpoint, sent *call) (*conn, *attempt) {
	t.Helper()
	p, _ := client.resolve(r.addr(t, client))
	try := &attempt{cancel: func() {}}
	p.mu.Lock()
	p.activate()
	p.link, p.try = linkDialing, try
	p.mu.Unlock()
	if err := p.account.Take(hostquota.Connections, 1); err != nil {
		t.Fatal(err)
	}
	client.SendRequest(&sent.op, p, 1, request(client, nil))
	made := make(chan *conn)
	go func() {
		c, _, err := p.connect(t.Context())
		if err != nil {
			t.Error(err)
		}
		made <- c
	}()
	r.accept(t)
	c := <-made
	if c == nil {
		t.FailNow()
	}
	return c, try
}

// wantNext checks that the request of sent goes over the next connection, which the client makes.
func wantNext(t *testing.T, r *rawPeer, sent *call) {
	t.Helper()
	c := r.accept(t)
	c.credit(t, 10)
	for m := c.next(t); m.kind != kindRequest; m = c.next(t) {
		continue
	}
	sent.want(t, 0)
}

// TestEndBetweenAdoptionAndUse has a connection end when the endpoint has adopted it, before it becomes that of its peer. The request
// that waits goes over the next connection.
func TestEndBetweenAdoptionAndUse(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	sent := newCall()
	c, _ := halfway(t, r, client, sent)
	p := c.peer
	p.mu.Lock()
	if !client.adopt(c) {
		t.Error("the endpoint is closed")
	}
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		c.fail(na.Unreachable, errEnded) // waits for the lock of p
	}()
	<-c.stop
	p.upLocked(c, 7)
	p.mu.Unlock()
	<-failed
	wantNext(t, r, sent)
}

// TestNothingIsPostedBeforeAdoption has the queue pair of a connection close before the endpoint adopts it, so that every post on it
// fails. The connection ends after it has become that of its peer, and the request goes over the next one.
func TestNothingIsPostedBeforeAdoption(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	sent := newCall()
	c, try := halfway(t, r, client, sent)
	c.mu.Lock()
	credits, owed := c.credits, c.owed
	c.mu.Unlock()
	if credits != 1 || owed != c.shape.window-1 {
		t.Errorf("%d credits and %d receives to grant, so a packet has been posted", credits, owed)
	}
	if err := c.qp.Close(); err != nil {
		t.Fatal(err)
	}
	c.peer.connected(try, c, 7)
	wantNext(t, r, sent)
}
