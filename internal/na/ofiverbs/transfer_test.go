package ofiverbs

import (
	"bytes"
	"testing"

	"cinnabar/internal/na"
)

// lend registers mem at owner and returns it as user sees it.
func lend(t testing.TB, owner, user *Endpoint, mem []byte, access na.Access) (na.Memory, na.RemoteMemory) {
	t.Helper()
	m, err := owner.Register(mem, access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	r, err := user.ParseHandle(m.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	if r.Len() != uint64(len(mem)) {
		t.Fatalf("the memory has %d bytes, want %d", r.Len(), len(mem))
	}
	return m, r
}

// TestGetAndPut moves pieces of all sizes, at offsets, in several fragments.
func TestGetAndPut(t *testing.T) {
	owner, user := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, user, owner)
	for _, size := range []int{1, 100, 5000, mostChunk, 3*mostChunk + 17, 40 << 20} {
		mem := noise(size)
		_, r := lend(t, owner, user, mem, na.ReadWrite)
		got, c := make([]byte, size), newCall()
		cut := size / 3
		frags := []na.Fragment{
			{Remote: r, Local: got[:cut]}, {Remote: r, Offset: uint64(cut), Local: got[cut:cut]},
			{Remote: r, Offset: uint64(cut), Local: got[cut:]}, {Remote: r, Offset: uint64(size), Local: nil},
		}
		user.Get(&c.op, to, frags)
		if err := c.wait(t, user, to); err != nil || c.op.N != int64(size) || !bytes.Equal(got, mem) {
			t.Fatalf("get of %d bytes: %d, %v", size, c.op.N, err)
		}
		if p := c.op.Progress.Load(); p != int64(size) {
			t.Errorf("progress of %d bytes is %d", size, p)
		}
		mine := bytes.Repeat([]byte{7}, size)
		c = newCall()
		user.Put(&c.op, to, []na.Fragment{{Remote: r, Offset: uint64(cut), Local: mine[cut:]}, {Remote: r, Local: mine[:cut]}})
		if err := c.wait(t, user, to); err != nil || c.op.N != int64(size) {
			t.Fatalf("put of %d bytes: %d, %v", size, c.op.N, err)
		}
		if !bytes.Equal(mem, mine) {
			t.Fatalf("put of %d bytes: other bytes have come", size)
		}
	}
}

// TestManyTransfers has more transfers, of more fragments, under way than the connection posts.
func TestManyTransfers(t *testing.T) {
	owner, user := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, user, owner)
	const n, each, frag = 50, 1000, 10
	mem := noise(n * each)
	_, r := lend(t, owner, user, mem, na.ReadOnly)
	got := make([]byte, len(mem))
	var calls []*call
	for i := range n {
		var frags []na.Fragment
		for at := i * each; at < (i+1)*each; at += frag {
			frags = append(frags, na.Fragment{Remote: r, Offset: uint64(at), Local: got[at : at+frag]})
		}
		c := newCall()
		user.Get(&c.op, to, frags)
		calls = append(calls, c)
	}
	for _, c := range calls {
		if err := c.wait(t, user, to); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, mem) {
		t.Error("other bytes have come")
	}
}

// TestTransferByOrigin has a handler read memory of the caller over the connection of the request, as a pull does.
func TestTransferByOrigin(t *testing.T) {
	var server *Endpoint
	server = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		from, tag, handle := m.From, m.Tag, bytes.Clone(m.Data)
		return taskFunc(func() {
			r, err := server.ParseHandle(handle)
			if err != nil {
				t.Error(err)
				return
			}
			got, c := make([]byte, r.Len()), newCall()
			server.Get(&c.op, from, []na.Fragment{{Remote: r, Local: got}})
			if err := c.wait(t, server, from); err != nil {
				t.Error(err)
			}
			server.SendExpected(&newCall().op, from, tag, got[:100])
		})
	})})
	client := openEndpoint(t, Config{})
	to := lookup(t, client, server)
	mem := noise(1 << 20)
	m, _ := lend(t, client, client, mem, na.ReadOnly)
	answer, buf := newCall(), make([]byte, 4096)
	client.RecvExpected(&answer.op, to, 1, buf)
	client.SendRequest(&newCall().op, to, 1, request(client, m.AppendHandle(nil)))
	if err := answer.wait(t, client, to); err != nil || !bytes.Equal(buf[:answer.op.N], mem[:100]) {
		t.Errorf("%v, %d bytes", err, answer.op.N)
	}
}

// TestRights checks that the transport refuses accesses beyond a handle, and that the device refuses those for which a handle was
// forged.
// parity: N03
func TestRights(t *testing.T) {
	owner, user := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, user, owner)
	mem := bytes.Repeat([]byte{1}, 100)
	_, readable := lend(t, owner, user, mem, na.ReadOnly)
	_, writable := lend(t, owner, user, mem, na.WriteOnly)
	for name, start := range map[string]func(op *na.Op){
		"put to read-only":  func(op *na.Op) { user.Put(op, to, []na.Fragment{{Remote: readable, Local: []byte{2}}}) },
		"get of write-only": func(op *na.Op) { user.Get(op, to, []na.Fragment{{Remote: writable, Local: make([]byte, 1)}}) },
		"behind the end": func(op *na.Op) {
			user.Get(op, to, []na.Fragment{{Remote: readable, Offset: 99, Local: make([]byte, 2)}})
		},
		"offset wraps": func(op *na.Op) {
			user.Get(op, to, []na.Fragment{{Remote: readable, Offset: 1<<64 - 1, Local: make([]byte, 2)}})
		},
	} {
		c := newCall()
		start(&c.op)
		if c.want(t, na.Denied); t.Failed() {
			t.Fatal(name)
		}
	}
	ask(t, user, to, 1, nil)

	forged := *readable.(*remote)
	forged.access = na.ReadWrite
	c := newCall()
	user.Put(&c.op, to, []na.Fragment{{Remote: &forged, Local: bytes.Repeat([]byte{2}, 100)}})
	if err := c.park(t); err == nil {
		t.Error("a put to memory that is exposed for reading succeeds")
	}
	if !bytes.Equal(mem, bytes.Repeat([]byte{1}, 100)) {
		t.Error("memory that is exposed for reading was written")
	}
	forged = *writable.(*remote)
	forged.access = na.ReadWrite
	c = newCall()
	user.Get(&c.op, to, []na.Fragment{{Remote: &forged, Local: make([]byte, 100)}})
	if err := c.park(t); err == nil {
		t.Error("memory that is exposed for writing was read")
	}
	ask(t, user, to, 2, nil)
}

// TestRevoked checks that a key ends with Revoke, and that memory is released twice without harm.
func TestRevoked(t *testing.T) {
	owner, user := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, user, owner)
	m, r := lend(t, owner, user, noise(10), na.ReadOnly)
	m.Revoke()
	c := newCall()
	user.Get(&c.op, to, []na.Fragment{{Remote: r, Local: make([]byte, 10)}})
	if err := c.park(t); err == nil {
		t.Error("closed memory was read")
	}
	m.Close()
	m.Close()
	ask(t, user, to, 1, nil)
}

// TestBadMemory registers memory that cannot be registered, and reads handles that are none.
func TestBadMemory(t *testing.T) {
	e := openEndpoint(t, Config{})
	if _, err := e.Register(nil, na.ReadOnly); na.KindOf(err) != na.Invalid {
		t.Errorf("no memory: %v", err)
	}
	for _, access := range []na.Access{0, 4} {
		if _, err := e.Register(make([]byte, 1), access); na.KindOf(err) != na.Invalid {
			t.Errorf("access %d: %v", access, err)
		}
	}
	if _, err := e.ParseHandle(make([]byte, handleLen)); na.KindOf(err) != na.Protocol {
		t.Errorf("a handle of zeros: %v", err)
	}
	c := newCall()
	e.Get(&c.op, e.Addr(), []na.Fragment{{Remote: foreign{}, Local: make([]byte, 1)}})
	c.want(t, na.Invalid)
	e.Get(&c.op, e.Addr(), nil)
	c.want(t, 0)
}

// foreign is the memory of another network.
type foreign struct{}

func (foreign) Len() uint64 { return 10 }

// TestCancelTransfer gives up a transfer that waits for a connection, and one of which the owner does not answer the reads.
func TestCancelTransfer(t *testing.T) {
	r, user := newRawPeer(t), openEndpoint(t, Config{})
	to := r.addr(t, user)
	remoteMemory := &remote{size: 10, access: na.ReadWrite}
	c := newCall()
	user.Get(&c.op, to, []na.Fragment{{Remote: remoteMemory, Local: make([]byte, 10)}})
	user.Cancel(&c.op)
	c.want(t, na.Canceled)
	r.accept(t)
}

// TestTransferAndEnd ends connections while transfers are under way. All complete, and afterwards their memory is their owner's.
func TestTransferAndEnd(t *testing.T) {
	for i := range 10 {
		owner, user := openServer(t, Config{}), openEndpoint(t, Config{})
		to := lookup(t, user, owner)
		_, r := lend(t, owner, user, noise(8<<20), na.ReadWrite)
		ask(t, user, to, 1, nil)
		var calls []*call
		for k := range 8 {
			c := newCall()
			local := make([]byte, 8<<20)
			if k%2 == 0 {
				user.Get(&c.op, to, []na.Fragment{{Remote: r, Local: local}})
			} else {
				user.Put(&c.op, to, []na.Fragment{{Remote: r, Local: local}})
			}
			calls = append(calls, c)
		}
		switch i % 3 {
		case 0:
			closeEndpoint(t, owner)
		case 1:
			closeEndpoint(t, user)
		case 2:
			for _, c := range calls {
				user.Cancel(&c.op)
			}
		}
		for _, c := range calls {
			_ = c.park(t)
			c.op.Begin() // panics if the operation is in flight
			c.op.Finish(0, nil)
		}
	}
}

// TestRemovedIsForgotten removes the first of two transfers, and the first of two waiting items. The second one moves to the first place. The second
// place of the array must be empty then, because it would otherwise keep the memory of a transfer after its end.
func TestRemovedIsForgotten(t *testing.T) {
	first, last := &transfer{op: new(na.Op)}, &transfer{op: new(na.Op)}
	m := oneSided{queue: []*transfer{first, last}}
	m.remove(first)
	if q := m.queue[:2]; len(m.queue) != 1 || q[0] != last || q[1] != nil {
		t.Errorf("the queue has %d transfers, and the second place of its array has %p", len(m.queue), q[1])
	}
	p := &peer{}
	p.mu.Lock()
	p.waiting = []item{{op: first.op, t: first}, {op: last.op, t: last}}
	p.mu.Unlock()
	if it, ok := p.unqueue(first.op); !ok || it.t != first {
		t.Error("the waiting item was not found")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.waiting[:2]; len(p.waiting) != 1 || w[0].t != last || w[1].t != nil {
		t.Errorf("%d items wait, and the second place of their array has %p", len(p.waiting), w[1].t)
	}
}
