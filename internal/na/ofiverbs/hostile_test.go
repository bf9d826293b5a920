package ofiverbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/verbs"
	"cinnabar/verbs/fault"
)

// TestPeerByHand talks to a server in the manner of libfabric, and reads the bytes that it sends back.
func TestPeerByHand(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	c := r.mustDial(t, server)
	c.credit(t, 31)
	first := c.next(t)
	if first.kind != kindCredit || first.credits != uint64(server.shape.receives-1) {
		t.Fatalf("the first packet is %+v; it grants all receives but one", first)
	}
	// Stale bytes, as those of the capture, in the fields that have no meaning.
	p := r.request(c, 9, "hello")
	copy(p[2:8], "\x01\x02\x03\x04\x05\x06")
	copy(p[16:32], bytes.Repeat([]byte{0x7f}, 16))
	c.put(t, p)
	if m := c.next(t); m.kind != kindExpected || m.tag != 9 || string(m.payload) != "hello" {
		t.Fatalf("the response is %+v", m)
	}
	p = r.request(c, 10, "tagged")
	p.putExpected(c.index, 10, len(p)-headerLen)
	binary.LittleEndian.PutUint64(p[offTag:], requestTag|10)
	c.put(t, p)
	if m := c.next(t); m.kind != kindExpected || m.tag != 10 || string(m.payload) != "tagged" {
		t.Fatalf("the response to a tagged request is %+v", m)
	}
	for i := range server.shape.receives {
		c.put(t, r.request(c, uint32(i), ""))
		m := c.next(t)
		if m.kind == kindCredit {
			half := uint64(server.shape.receives / 2)
			if m.credits < half || m.credits >= half+half/2 {
				t.Errorf("a grant of %d, want one of %d, or of the few packets more that have come meanwhile", m.credits, half)
			}
			return
		}
		if i%8 == 7 {
			c.credit(t, 9)
		}
	}
	t.Error("no further credits have come")
}

// TestFirstCredit checks that an endpoint sends no data before it has credits, and keeps the last one.
func TestFirstCredit(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	to := r.addr(t, client)
	for i := range 3 {
		client.SendRequest(&newCall().op, to, uint32(i), request(client, nil))
	}
	c := r.accept(t)
	if m := c.next(t); m.kind != kindCredit {
		t.Fatalf("the first packet is %+v, not a credit packet", m)
	}
	// One credit is left over after the credit packet took that with which the connection begins: of 2 the endpoint spends 1.
	c.credit(t, 2)
	if m := c.next(t); m.kind != kindRequest || m.tag != 0 {
		t.Fatalf("with two credits %+v comes", m)
	}
	if got := client.Report(to); got == "" {
		t.Error("nothing waits for credits")
	}
	c.credit(t, 2)
	for i := range 2 {
		if m := c.next(t); m.kind != kindRequest || m.tag != uint32(i+1) {
			t.Fatalf("%+v comes, not request %d", m, i+1)
		}
	}
}

// TestNoFlowControl has a peer that announces no flow control. It gets no credits, and messages without any.
func TestNoFlowControl(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	req := r.cmRequest()
	req.flow = flowOff
	c, err := r.dial(t, server, appendRequest(nil, req))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * rawReceives {
		c.put(t, r.request(c, uint32(i), "x"))
		if m := c.next(t); m.kind != kindExpected || m.tag != uint32(i) {
			t.Fatalf("%+v comes, not response %d", m, i)
		}
	}
}

// TestHostilePackets checks that each violation of the protocol ends the connection that it came over and no other, and is recorded.
func TestHostilePackets(t *testing.T) {
	trail := audit.New(nil)
	server := openServer(t, Config{Audit: trail})
	innocent := openEndpoint(t, Config{})
	to := lookup(t, innocent, server)
	ask(t, innocent, to, 1, nil)
	r := newRawPeer(t)
	valid := func(c *rawConn) packet { return r.request(c, 1, "data") }
	cases := map[string]func(c *rawConn) []byte{
		"empty":        func(*rawConn) []byte { return nil },
		"short":        func(c *rawConn) []byte { return valid(c)[:headerLen-1] },
		"unknown type": func(c *rawConn) []byte { return changed(valid(c), offType, 77) },
		"segment":      func(c *rawConn) []byte { return changed(valid(c), offType, byte(typeSegment)) },
		"rendezvous":   func(c *rawConn) []byte { return changed(valid(c), offType, byte(typeRendezvous)) },
		"size":         func(c *rawConn) []byte { return changed(valid(c), offSize, 0xff) },
		"stale connection": func(c *rawConn) []byte {
			b := bytes.Clone(valid(c))
			binary.LittleEndian.PutUint64(b[offConnID:], uint64(c.index)+1)
			return b
		},
		"wide connection": func(c *rawConn) []byte { return changed(valid(c), offConnID+4, 1) },
		"too many credits": func(c *rawConn) []byte {
			p := make(packet, headerLen)
			p.putCredit(c.index, maxCredits)
			return p
		},
		"credits that wrap": func(c *rawConn) []byte {
			p := make(packet, headerLen)
			p.putCredit(c.index, -1)
			return p
		},
		"longer than a receive": func(c *rawConn) []byte {
			p := append(valid(c), make([]byte, 4096)...)
			p.putRequest(c.index, 1, len(p)-headerLen)
			return p
		},
	}
	for name, bad := range cases {
		c := r.mustDial(t, server)
		c.credit(t, 10)
		b := bad(c)
		copy(c.send.Bytes(), b)
		wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{c.send.SGE(0, len(b))}}
		if _, err := c.qp.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
		<-c.vc.Done()
		c.close(t)
		eventually(t, name+": the end of the connection", func() bool { return len(server.connections()) == 1 })
		ask(t, innocent, to, 2, nil)
	}
	var broken uint64
	for _, n := range trail.Counts() {
		if n.Event == audit.Broken && n.Cause == causePacket {
			broken = n.N
		}
	}
	if want := uint64(len(cases) - 1); broken != want { // the device itself finds the packet that is longer than a receive
		t.Errorf("%d violations are recorded, want %d", broken, want)
	}
}

// TestHostileRequests checks that a request without a valid address of the sender is dropped, and the connection stays.
func TestHostileRequests(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	c := r.mustDial(t, server)
	c.credit(t, 20)
	short := make(packet, headerLen+3)
	short.putRequest(c.index, 1, 3)
	c.put(t, short)
	family := r.request(c, 2, "x")
	family[headerLen] = 77
	c.put(t, family)
	c.put(t, r.request(c, 3, "x"))
	for m := c.next(t); m.tag != 3; m = c.next(t) {
		if m.kind == kindExpected {
			t.Fatalf("response %+v", m)
		}
	}
}

// TestStrayResponses sends expected messages for which no operation waits; they are dropped.
func TestStrayResponses(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	c := r.mustDial(t, server)
	c.credit(t, 31)
	p := append(make(packet, headerLen), "stray"...)
	p.putExpected(c.index, 1, 5)
	for range 20 {
		c.put(t, p)
	}
	c.put(t, r.request(c, 2, "x"))
	for m := c.next(t); m.kind != kindExpected; m = c.next(t) {
		continue
	}
}

// TestRefusedConnections checks the refusals of requests that are not acceptable.
func TestRefusedConnections(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	good := appendRequest(nil, r.cmRequest())
	self := r.cmRequest()
	self.port = server.self.Port()
	thief := self
	thief.id.process = server.process
	thief.port = r.ln.Addr().Port() // the number of the server's process does not make this peer the server
	for name, private := range map[string][]byte{
		"nothing": nil, "CM version": changed(good, offCMVersion, 2), "eager limit": changed(good, offCMEager, 0, 0x20), "endpoint": changed(good, offCMEndpoint, 1),
		"port 0": changed(good, offCMPort, 0, 0), "the server itself": appendRequest(nil, self),
	} {
		_, err := r.dial(t, server, private)
		rejected, ok := errors.AsType[*verbs.RejectedError](err)
		if !ok || parseReject(rejected.PrivateData) != rejectRefused {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	if _, err := r.dial(t, server, appendRequest(nil, thief)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a connection", func() bool { return len(server.connections()) == 1 })
	if got := server.own.account.Used(hostquota.Connections); got != 0 {
		t.Errorf("%d connections of a remote host count as the server's own", got)
	}
}

// TestClaimToBeTheServer has a process of the server's host connect with the server's port and number while the server dials itself. Every
// peer learns the number, so the process is refused. It would otherwise have the identity of the server, and Config.Admit would not be asked.
func TestClaimToBeTheServer(t *testing.T) {
	server := openServer(t, Config{})
	setLink := func(s linkState) {
		server.own.mu.Lock()
		defer server.own.mu.Unlock()
		server.own.link = s
	}
	setLink(linkDialing)
	defer setLink(linkIdle)
	r := newRawPeer(t)
	thief := r.cmRequest()
	thief.port, thief.id.process = server.self.Port(), server.process
	_, err := r.dial(t, server, appendRequest(nil, thief))
	if rejected, ok := errors.AsType[*verbs.RejectedError](err); !ok || parseReject(rejected.PrivateData) != rejectRefused {
		t.Errorf("%v, want a refusal", err)
	}
	if n := len(server.connections()); n != 0 {
		t.Errorf("the process has %d connections as the server itself", n)
	}
}

// TestSecondRequest sends a second connection request from a connected peer: as the same process, and as another process while the connection
// lives. The request is refused, and the connection serves.
func TestSecondRequest(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	first := r.mustDial(t, server)
	eventually(t, "a connection", func() bool { return len(server.connections()) == 1 })
	first.credit(t, 10)
	first.next(t) // the server can send, so it can ask whether the peer lives
	other := r.cmRequest()
	other.id.process++
	for name, again := range map[string]cmRequest{"the same process": r.cmRequest(), "another process": other} {
		_, err := r.dial(t, server, appendRequest(nil, again))
		rejected, ok := errors.AsType[*verbs.RejectedError](err)
		if !ok || parseReject(rejected.PrivateData) != rejectAlready {
			t.Fatalf("%s: %v, want a refusal with reason 2", name, err)
		}
	}
	first.put(t, r.request(first, 1, "x"))
	for m := first.next(t); m.kind != kindExpected; m = first.next(t) {
		continue
	}
	if got := server.peer(r.ln.Addr()).account.Used(hostquota.Connections); got != 1 {
		t.Errorf("%d connections of the peer's host are counted, want 1", got)
	}
}

// TestRestartedPeer connects from another process as a peer with a device that does not answer any more. Its connection replaces that of the peer. The
// same process, which has lost the connection, is refused once, because its request may have crossed that connection.
func TestRestartedPeer(t *testing.T) {
	rules := []fault.Rule{{Match: fault.Match{At: fault.AtSend, Queue: 1, Ops: []verbs.Opcode{verbs.OpRead}}, Do: fault.Drop()}}
	for name, tc := range map[string]struct {
		process uint32 // its number less that of the connected process
		refused bool   // the first request
		cause   error
	}{"another process": {1, false, errReplaced}, "the same process": {0, true, errForgotten}} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, Config{KeepAlive: -1}, rules, func(t *testing.T, f *faulty) {
				_, answer := f.request(1)
				f.accept(1)
				synctest.Wait() // so that the connection makes no progress any more
				again := f.peer.cmRequest()
				again.id.process += tc.process
				begin := time.Now()
				c, err := f.peer.dial(t, f.e, appendRequest(nil, again))
				if tc.refused {
					if rejected, ok := errors.AsType[*verbs.RejectedError](err); !ok || parseReject(rejected.PrivateData) != rejectAlready {
						t.Fatalf("the first request: %v", err)
					}
					answer.want(t, na.Unreachable)
					c, err = f.peer.dial(t, f.e, appendRequest(nil, again))
				} else {
					answer.want(t, na.Unreachable)
				}
				if took := time.Since(begin); err != nil || took != answerTime {
					t.Fatalf("after %v: %v", took, err)
				}
				if !errors.Is(answer.op.Err, tc.cause) {
					t.Errorf("the call of the old connection ended with %v", answer.op.Err)
				}
				c.credit(t, 10)
				sent, _ := f.request(2)
				sent.want(t, 0)
				for m := c.next(t); m.kind != kindRequest; m = c.next(t) {
					continue
				}
			})
		})
	}
}

// TestProgressIsLife connects from another process as a peer with a device that does not answer a read, because other work is before it. The request is
// refused while packets of the peer come. If they stop, its connection replaces that of the peer answerTime later, give or take an interval of looks.
func TestProgressIsLife(t *testing.T) {
	rules := []fault.Rule{{Match: fault.Match{At: fault.AtSend, Queue: 1, Ops: []verbs.Opcode{verbs.OpRead}}, Do: fault.Drop()}}
	for name, packets := range map[string]int{"slow": 100, "stopped": 2} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, Config{KeepAlive: -1}, rules, func(t *testing.T, f *faulty) {
				_, answer := f.request(1)
				f.accept(1)
				other := f.peer.cmRequest()
				other.id.process++
				result := make(chan error)
				begin := time.Now()
				go func() {
					_, err := f.peer.dial(t, f.e, appendRequest(nil, other))
					result <- err
				}()
				const pause = answerTime * 7 / 10
				var err error
				for n, over := 0, false; !over; n++ {
					if n < packets {
						f.conn.credit(t, 1)
					}
					select {
					case err = <-result:
						over = true
					case <-time.After(pause): //nolint:forbidigo // simulated time
					}
				}
				took := time.Since(begin)
				if packets == 2 {
					if last := answerTime + pause; err != nil || took < last || took > last+answerTime/looks {
						t.Errorf("after %v: %v", took, err)
					}
					answer.want(t, na.Unreachable)
					return
				}
				if rejected, ok := errors.AsType[*verbs.RejectedError](err); !ok || parseReject(rejected.PrivateData) != rejectAlready || took >= 2*answerTime {
					t.Errorf("after %v: %v, want a refusal", took, err)
				}
				p := append(make(packet, headerLen), "ok"...)
				p.putExpected(f.conn.index, 1, 2)
				f.conn.put(t, p)
				answer.want(t, 0)
			})
		})
	}
}

// TestRefusedAgainAndAgain has a peer that refuses three requests because it is connecting itself, and accepts the fourth.
func TestRefusedAgainAndAgain(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	to := r.addr(t, client)
	sent := newCall()
	client.SendRequest(&sent.op, to, 1, request(client, []byte("late")))
	for range 3 {
		req, err := r.ln.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := req.Reject(append(appendReject(nil, rejectAlready), make([]byte, 20)...)); err != nil {
			t.Fatal(err)
		}
	}
	c := r.accept(t)
	c.credit(t, 10)
	m := c.next(t)
	for ; m.kind != kindRequest; m = c.next(t) {
		continue
	}
	if m.tag != 1 {
		t.Errorf("%+v comes", m)
	}
	sent.want(t, 0)
}

// TestRefusedForGood has peers that refuse with another reason, with none, or whose answer is no acceptance of this protocol.
func TestRefusedForGood(t *testing.T) {
	for name, answer := range map[string]func(req *verbs.ConnRequest) error{
		"refused": func(req *verbs.ConnRequest) error { return req.Reject(appendReject(nil, rejectRefused)) },
		"kernel":  func(req *verbs.ConnRequest) error { return req.Reject(make([]byte, 40)) },
	} {
		r, client := newRawPeer(t), openEndpoint(t, Config{})
		sent := newCall()
		client.SendRequest(&sent.op, r.addr(t, client), 1, request(client, nil))
		req, err := r.ln.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := answer(req); err != nil {
			t.Fatal(err)
		}
		if sent.want(t, na.Unreachable); sent.op.Err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	sent := newCall()
	client.SendRequest(&sent.op, r.addr(t, client), 1, request(client, nil))
	req, err := r.ln.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := r.queue(t)
	if c.vc, err = req.Accept(t.Context(), c.qp, verbs.ConnParam{PrivateData: []byte("SMTP")}); err != nil {
		t.Fatal(err)
	}
	sent.want(t, na.Unreachable)
}

// TestPeerThatEndsConnections has a peer accept each connection and end it before it grants credits. The endpoint pauses longer and longer
// between its attempts. The time is a lower bound, which a busy machine only exceeds.
func TestPeerThatEndsConnections(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	sent := newCall()
	begin := time.Now()
	client.SendRequest(&sent.op, r.addr(t, client), 1, request(client, nil))
	for range 8 {
		r.accept(t).close(t)
	}
	c := r.accept(t)
	if took, least := time.Since(begin), 748*time.Millisecond; took < least { // 8, 16, 32, 64, 128, 250 and 250 ms
		t.Errorf("8 connections that are of no use in %v; the pauses between them have %v", took, least)
	}
	c.credit(t, 10)
	for m := c.next(t); m.kind != kindRequest; m = c.next(t) {
		continue
	}
	sent.want(t, 0)
}

// TestImpostorOfEndpoint has a peer say that it is the endpoint itself, whose host has no limits. It knows the address and the number of the
// process, which each acceptance has. The endpoint still calls itself.
func TestImpostorOfEndpoint(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	req := r.cmRequest()
	req.port, req.id.process = server.self.Port(), server.process
	for range 2 {
		_, err := r.dial(t, server, appendRequest(nil, req))
		if rejected, ok := errors.AsType[*verbs.RejectedError](err); !ok || parseReject(rejected.PrivateData) != rejectRefused {
			t.Fatalf("the impostor gets %v, want a refusal", err)
		}
		ask(t, server, server.Addr(), 1, nil) // the second impostor comes beside the endpoint's connection with itself
	}
}

// TestUnsentRequestsMove has a connection end before it has had credits for a request. The request goes over the next connection.
func TestUnsentRequestsMove(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	to := r.addr(t, client)
	sent, answer := newCall(), newCall()
	client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
	client.SendRequest(&sent.op, to, 1, request(client, nil))
	first := r.accept(t)
	eventually(t, "a message that waits for credits", func() bool { return client.Report(to) != "" && len(client.connections()) == 1 })
	first.close(t)
	c := r.accept(t)
	c.credit(t, 10)
	for m := c.next(t); m.kind != kindRequest; m = c.next(t) {
		continue
	}
	sent.want(t, 0)
	p := append(make(packet, headerLen), "ok"...)
	p.putExpected(c.index, 1, 2)
	c.put(t, p)
	answer.want(t, 0)
}
