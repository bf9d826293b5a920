package ofitcp

import (
	"bytes"
	"testing"
)

// begin starts a call and leaves the waiting to the caller.
func (c *client) begin(data []byte) {
	c.tag++
	c.e.RecvExpected(&c.recv.op, c.to, c.tag, c.buf)
	c.msg = append(c.msg[:c.e.Limits().RequestRoom], data...)
	c.e.SendRequest(&c.send.op, c.to, c.tag, c.msg)
}

// TestGather: requests that one goroutine starts one after the other are sent and answered, whether or not somebody
// drives the connection.
func TestGather(t *testing.T) {
	const calls = 100
	for name, drive := range map[string]bool{"driven": true, "not driven": false} {
		t.Run(name, func(t *testing.T) {
			server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
			to := addrOf(t, cl, server)
			newClient(cl, to, 1<<30).must(t, []byte("connect"))
			var begun []*client
			for i := range calls {
				c := newClient(cl, to, uint32(i)<<16)
				c.begin([]byte{byte(i)})
				begun = append(begun, c)
			}
			for i, c := range begun {
				if drive {
					cl.Drive(to, &c.recv.ev)
				}
				if err := c.recv.park(t); err != nil {
					t.Fatal(err)
				}
				if got := c.buf[:c.recv.op.N]; !bytes.Equal(got, []byte{byte(i)}) {
					t.Errorf("call %d was answered %x", i, got)
				}
				if err := c.send.park(t); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestGatheredAtEnd: what is gathered when the connection or the endpoint ends completes with an error or is sent.
func TestGatheredAtEnd(t *testing.T) {
	for range 50 {
		server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
		to := addrOf(t, cl, server)
		newClient(cl, to, 1<<30).must(t, []byte("connect"))
		var begun []*client
		for i := range gatherFrom * 3 {
			c := newClient(cl, to, uint32(i)<<16)
			c.begin([]byte("x"))
			begun = append(begun, c)
		}
		closeEndpoint(t, cl)
		for _, c := range begun {
			_ = c.recv.park(t) // either is right
			_ = c.send.park(t)
		}
	}
}
