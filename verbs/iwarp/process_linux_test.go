package iwarp_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"regexp"
	"testing"

	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// peerEnv holds, in the process that plays the peer, the address to dial.
const peerEnv = "CINNABAR_IWARP_PEER"

// TestPeerKilled kills the peer's process in the middle of traffic in both directions:
// the connection ends, in bounded time, and everything posted comes back.
func TestPeerKilled(t *testing.T) {
	if addr := os.Getenv(peerEnv); addr != "" {
		playPeer(t, netip.MustParseAddrPort(addr))
		return
	}
	const size = 256 << 10
	s := newSide(t, iwarp.Config{}, nil)
	mr := s.region(t, size)
	l, err := verbs.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := testproc.Start(t, testproc.Command{
		Args: []string{"-test.run=^" + regexp.QuoteMeta(t.Name()) + "$"},
		Env:  []string{peerEnv + "=" + l.Addr().String()},
	})
	r, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	to, ok := remoteIn(r.PrivateData())
	if !ok {
		t.Fatalf("private data %x", r.PrivateData())
	}
	if s.conn, err = r.Accept(testContext(t), s.qp, verbs.ConnParam{PrivateData: remoteOut(mr.Remote())}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if posted, back := traffic(testContext(t), t, s, mr, to, size); posted != back {
			t.Errorf("%d posted, %d came back", posted, back)
		}
	}()
	eventually(t, "traffic flows", func() bool { return s.dev.Stats()["rx_bytes"] > 20*size })
	p.Kill()
	<-s.conn.Done()
	<-ended
	if s.conn.Err() == nil {
		t.Error("the connection gives no reason for its end")
	}
	if !p.WasKilled() {
		t.Error("the peer was not killed")
	}
}

// playPeer keeps traffic of its own going until it is killed.
func playPeer(t *testing.T, addr netip.AddrPort) {
	const size = 256 << 10
	s := newSide(t, iwarp.Config{}, nil)
	mr := s.region(t, size)
	var err error
	if s.conn, err = verbs.Dial(testContext(t), s.qp, addr, verbs.ConnParam{PrivateData: remoteOut(mr.Remote())}); err != nil {
		t.Fatal(err)
	}
	to, ok := remoteIn(s.conn.PrivateData())
	if !ok {
		t.Fatalf("private data %x", s.conn.PrivateData())
	}
	traffic(testContext(t), t, s, mr, to, size)
}

// TestListenerKilled: a peer that dies while its answer is awaited ends the Dial.
func TestListenerKilled(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	if err := dialAnswered(t, s, nil, false); err == nil || errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Dial: error %v", err)
	}
}

// remoteOut and remoteIn carry the place of a region in private data.
func remoteOut(r verbs.RemoteAddr) []byte {
	b := binary.BigEndian.AppendUint64(nil, r.Addr)
	return binary.BigEndian.AppendUint32(b, r.RKey)
}

func remoteIn(b []byte) (r verbs.RemoteAddr, ok bool) {
	if len(b) != 12 {
		return r, false
	}
	return verbs.RemoteAddr{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:])}, true
}
