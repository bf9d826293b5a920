package xfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// hostNumber returns a host of its own for each number.
func hostNumber(n byte) hostquota.Host {
	return hostquota.HostOf(netip.AddrFrom4([4]byte{192, 0, 2, n}))
}

// crowd is a device in memory whose requests come from hosts that the test names: by the first byte of the private data,
// which the receiver does not see.
type crowd struct{ verbs.DeviceDriver }

type crowdListener struct{ verbs.ListenerDriver }

type crowdRequest struct {
	verbs.ConnRequestDriver
	host byte
}

func (d crowd) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	l, err := d.DeviceDriver.Listen(addr, cfg)
	return crowdListener{l}, err
}

func (l crowdListener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	r, err := l.ListenerDriver.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return crowdRequest{r, r.Param().PrivateData[0]}, nil
}

func (r crowdRequest) RemoteAddr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, r.host}), 1)
}

func (r crowdRequest) Param() verbs.ConnParam {
	p := r.ConnRequestDriver.Param()
	p.PrivateData = p.PrivateData[1:]
	return p
}

// newCrowd opens a device of which the test closes all it makes.
func newCrowd(t testing.TB) *verbs.Device {
	dev := verbs.NewDevice(crowd{memdev.Open(memdev.Config{})})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// silent asks the receiver for a transfer as a host, and says no more.
func silent(t testing.TB, dev *verbs.Device, addr netip.AddrPort, from byte, h hello) (*rawPeer, error) {
	p := newRawShared(t, dev)
	p.postReceives(false)
	conn, err := verbs.Dial(p.ctx, p.qp, addr, verbs.ConnParam{PrivateData: append([]byte{from}, appendHello(nil, h)...)})
	p.conn = conn
	return p, err
}

// refusalOf returns the words of a rejected request.
func refusalOf(err error) errorMessage {
	rejected, ok := errors.AsType[*verbs.RejectedError](err)
	if !ok {
		return errorMessage{}
	}
	v, _ := parseRefusal(rejected.PrivateData)
	return v
}

// One host cannot take all places of a receiver by connections that say nothing, nor all memory by asking for much, nor
// keep places and memory for long.
func TestPlacesAreSharedByHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		audit.Reset()
		var log logBuffer
		dev := newCrowd(t)
		srv := serve(t, dev, Receiver{Logger: log.logger(), MaxMemory: 64 << 20}, DirOptions{})
		greedy := hello{fast: true, chunk: 8 << 20, buffers: 64, size: 1 << 40}
		var held []*rawPeer
		for range mostConnections {
			p, err := silent(t, dev, srv.addr, 1, greedy)
			if err != nil {
				t.Fatalf("after %d: %v", len(held), err)
			}
			held = append(held, p)
		}
		for _, p := range held[:mostConnections-36] { // 36 is the share of one host
			<-p.conn.Done()
		}
		held = held[mostConnections-36:]
		for i, p := range held {
			if isDone(p.conn) {
				t.Errorf("connection %d of the host's share has given way", i)
			}
		}
		other, err := silent(t, dev, srv.addr, 2, hello{fast: true, chunk: 64 << 10, buffers: 4, size: 1 << 20})
		if err != nil {
			t.Fatalf("another host is refused: %v", err)
		}
		if a, err := parseAnswer(other.conn.PrivateData()); err != nil || a.buffers != 4 || a.chunk != 64<<10 {
			t.Errorf("another host gets %+v, %v", a, err)
		}
		other.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}))
		other.fast(fastLayout)
		start := time.Now()
		for _, p := range held {
			<-p.conn.Done()
		}
		if took := time.Since(start); took > openTimeout+time.Second {
			t.Errorf("silent senders keep their places for %v", took)
		}
		if isDone(other.conn) {
			t.Error("the transfer of another host has ended")
		}
		synctest.Wait() // until the receiver has given the places back
		if p, err := silent(t, dev, srv.addr, 1, greedy); err != nil {
			t.Errorf("a place that is free again: %v", err)
		} else {
			p.leave()
		}
		other.leave()
		srv.stop()
		if n := strings.Count(log.String(), "host=192.0.2.1 "); n > audit.LinesPerHost {
			t.Errorf("%d lines about one host:\n%s", n, log.String())
		}
		wantText(t, log.String(), `"connection evicted: no file was named"=28`, `"connection accepted: fast"=66`, `"transfer failed: no progress"=36`)
	})
}

func isDone(c *verbs.Conn) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// Senders of one host find places although others of the host connect again and again and say nothing. A transfer that has begun
// never gives way: when a host's share is full of them, its newcomers are refused.
func TestTransfersKeepTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := newCrowd(t)
		const places, share = 16, 9
		srv := serve(t, dev, Receiver{MaxConnections: places}, DirOptions{})
		small := hello{fast: true, chunk: minChunk, buffers: 1, size: 1 << 20}
		var named []*rawPeer
		for n := range share {
			for range 2 * places {
				if _, err := silent(t, dev, srv.addr, 1, small); err != nil {
					t.Fatalf("a silent connection beside %d transfers: %v", n, err)
				}
			}
			p, err := silent(t, dev, srv.addr, 1, small)
			if err != nil {
				t.Fatalf("sender %d: %v", n, err)
			}
			p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: fmt.Append(nil, n)}))
			p.fast(fastLayout)
			named = append(named, p)
		}
		_, err := silent(t, dev, srv.addr, 1, small)
		if v := refusalOf(err); v.code != CodeBusy || !strings.Contains(v.text, "192.0.2.1 holds 9 of 16 connections") {
			t.Errorf("a host whose transfers fill its share is refused by %+v, %v", v, err)
		}
		for n, p := range named {
			if isDone(p.conn) {
				t.Errorf("transfer %d has ended", n)
			}
			p.leave()
		}
	})
}

// Lines about strangers are bounded, in any case; the numbers are not lost, and stored files have a line each.
func TestLogOfStrangersIsBounded(t *testing.T) {
	const strangers = 100
	audit.Reset()
	var log logBuffer
	dev := newCrowd(t)
	srv := serve(t, dev, Receiver{Logger: log.logger()}, DirOptions{})
	for i := range strangers {
		h := hello{fast: true, size: 1}
		if i%2 == 0 {
			h = hello{} // offers no protocol
		}
		p, err := silent(t, dev, srv.addr, 3, h)
		if err == nil {
			p.send([]byte("nonsense"))
			p.ends()
		}
		_, _ = srv.outcome(p.ctx)
	}
	srv.stop()
	if n := strings.Count(log.String(), "host=192.0.2.3 "); n == 0 || n > audit.LinesPerHost {
		t.Errorf("%d lines about %d strangers", n, strangers)
	}
	wantText(t, log.String(), `"refused: no common protocol"=50`, `"peer breaks the protocol: protocol broken"=50`)
}
