//go:build linux

package rdmacore_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestBadCable cuts the cable under a write to another machine, which for siw is
// our software device at the other end; rxe has nobody to talk to there, and is
// connected by hand to a queue pair that never answers.
// parity(vm): B46
func TestBadCable(t *testing.T) {
	switch dev := inChild(); {
	case dev == peerDevice:
		otherEnd(t)
	case strings.HasPrefix(dev, "siw"):
		cutFromPeer(t)
	case dev != "":
		cutFromNobody(t)
	default:
		l := newLink(t)
		env := l.env()
		if strings.HasPrefix(l.device, "siw") {
			peer := l.newPeer(t)
			env = append(env, atEnv+"="+peer.await("at"))
			defer func() {
				if err := peer.cmd.Process.Kill(); err != nil { // it would wait for TCP's time
					t.Error(err)
				}
				_ = peer.cmd.Wait() // it was killed
			}()
		}
		c := newChild(t, l.device, env...)
		c.await("writing")
		sh(t, "ip -n %[1]s link set p%[1]s down", l.netdev)
		c.finish()
	}
}

// atEnv tells where the other end listens and what may be written to.
const atEnv = "CINNABAR_RDMA_AT"

// otherEnd serves one connection on the software device.
func otherEnd(t *testing.T) {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := spareSide(t, dev)
	s.l = listenOn(t, dev, netip.AddrPortFrom(peerIP(t), 0))
	fmt.Printf("\nsays at %v %d %d\n", s.l.Addr(), s.mr.Remote().Addr, s.mr.RKey())
	s.serve(t)
}

// cutFromPeer sees nothing, since TCP repeats for a quarter of an hour. It is the
// program that gives up, and can close everything.
func cutFromPeer(t *testing.T) {
	dev := badDevice(t, inChild())
	var addr string
	var remote verbs.RemoteAddr
	if _, err := fmt.Sscan(os.Getenv(atEnv), &addr, &remote.Addr, &remote.RKey); err != nil {
		t.Fatal(err)
	}
	s := spareSide(t, dev)
	if _, err := verbs.Dial(soon(t), s.qp, netip.MustParseAddrPort(addr), verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	w := writer{s.qp, s.cq, s.mr, remote, sideSize}
	ctx, cancel := context.WithCancel(soon(t))
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx, func() { say("writing") }) }()
	hear(t)
	time.AfterFunc(time.Second, cancel)
	wantError(t, <-ended, context.Canceled)
}

// cutFromNobody gives up after its retries.
func cutFromNobody(t *testing.T) {
	const timeout, retries = 16, 3 // 0.27 s, each
	dev := badDevice(t, inChild())
	s := spareSide(t, dev)
	for _, a := range []verbs.QPAttr{
		{
			Mask:  verbs.AttrState | verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN | verbs.AttrMaxDestRDAtomic | verbs.AttrMinRNRTimer,
			State: verbs.StateRTR, PathMTU: 3, DestQPN: 17, MaxDestRDAtomic: 1, MinRNRTimer: 12,
			AH: verbs.AHAttr{GID: peerIP(t).As16(), PortNum: 1},
		},
		{
			Mask:  verbs.AttrState | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrSQPSN | verbs.AttrMaxRDAtomic,
			State: verbs.StateRTS, Timeout: timeout, RetryCount: retries, MaxRDAtomic: 1,
		},
	} {
		if err := s.qp.Modify(a); err != nil {
			t.Fatal(err)
		}
	}
	say("writing")
	err := writer{s.qp, s.cq, s.mr, s.mr.Remote(), sideSize}.run(soon(t), func() { t.Error("a write to nobody is done") })
	if !errors.Is(err, verbs.StatusRetryExcErr) && !errors.Is(err, verbs.StatusLocQPOpErr) {
		t.Errorf("the write ended with %v", err)
	}
	wantError(t, err, nil)
}
