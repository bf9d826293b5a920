//go:build unix

package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// peerEnv names the role that a re-executed test binary plays.
const peerEnv = "CINNABAR_BENCH_PEER"

// roles are what a peer can be. Each prints its address on one line of standard output and
// serves one connection after the other until standard input ends.
var roles = map[string]func() error{
	"tcp-sink":           tcpSink,
	"tcp-echo":           tcpEcho,
	"tcp-echo-parked":    tcpEchoParked,
	"verbs-target":       func() error { return verbsTarget(iwarp.Config{}) },
	"verbs-target/nocrc": func() error { return verbsTarget(iwarp.Config{NoCRC: true}) },
	"verbs-echo":         func() error { return verbsEcho(iwarp.Config{}) },
	"verbs-echo/nocrc":   func() error { return verbsEcho(iwarp.Config{NoCRC: true}) },
	"verbs-echo-parked":  func() error { return verbsEchoBy(iwarp.Config{}, (*ping).awaitParked) },
	"verbs-echo-parked/0": func() error {
		return verbsEchoBy(iwarp.Config{}, func(p *ping) error {
			p.e.cq.SetSpin(0)
			return p.awaitParked()
		})
	},
	"flow-echo":       flowEcho,
	"rstream-echo":    rstreamEcho,
	"rstream-sink":    rstreamSink,
	"rmem-server":     rmemServer,
	"rstream-idle":    rstreamIdle,
	"tcp-file/none":   func() error { return tcpFile(xfer.NoDigest) },
	"tcp-file/sha256": func() error { return tcpFile(xfer.SHA256) },
	"tcp-file/blake3": func() error { return tcpFile(blake3Digest) },
	"xfer-file":       xferFile,
}

func TestMain(m *testing.M) {
	role := os.Getenv(peerEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	go func() { // the parent's end of life is ours
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := roles[role](); err != nil {
		fmt.Fprintln(os.Stderr, "peer", role+":", err)
		os.Exit(1)
	}
}

// startPeer runs role in another process until the benchmark ends, and returns its address.
func startPeer(b *testing.B, role string) netip.AddrPort {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), exe)
	cmd.Env = append(os.Environ(), peerEnv+"="+role)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("peer %s: %v", role, err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatalf("peer %s did not start: %v", role, err)
	}
	addr, err := netip.ParseAddrPort(strings.TrimSpace(line))
	if err != nil {
		b.Fatal(err)
	}
	return addr
}

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

func listenTCP() (*net.TCPListener, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(loopback))
	if err == nil {
		fmt.Println(l.Addr())
	}
	return l, err
}

// end is one side's objects.
type end struct {
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	conn *verbs.Conn
}

func newEnd(dev *verbs.Device) (*end, error) {
	e := &end{dev: dev}
	var err error
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(1024); err != nil {
		return nil, err
	}
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 1, MaxRecvSGE: 1})
	return e, err
}

// dialVerbs connects to a peer and returns what it put into its private data.
func dialVerbs(b *testing.B, cfg iwarp.Config, addr netip.AddrPort) *end {
	b.Helper()
	dev, err := iwarp.Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	e, err := newEnd(dev)
	if err != nil {
		b.Fatal(err)
	}
	if e.conn, err = verbs.Dial(context.Background(), e.qp, addr, verbs.ConnParam{}); err != nil {
		b.Fatal(err)
	}
	return e
}

func (e *end) close(b *testing.B, mrs ...*verbs.MR) {
	b.Helper()
	if err := e.conn.Disconnect(context.Background()); err != nil {
		b.Error(err)
	}
	closers := []func() error{e.qp.Close}
	for _, mr := range mrs {
		closers = append(closers, mr.Close)
	}
	for _, f := range append(closers, e.cq.Close, e.pd.Close, e.dev.Close) {
		if err := f(); err != nil {
			b.Error(err)
		}
	}
}

// serveVerbs accepts one connection after the other.
func serveVerbs(cfg iwarp.Config, serve func(e *end, accept func(private []byte) error) error) error {
	dev, err := iwarp.Open(cfg)
	if err != nil {
		return err
	}
	l, err := verbs.Listen(dev, loopback)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	ctx := context.Background()
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		e, err := newEnd(dev)
		if err != nil {
			return err
		}
		err = serve(e, func(private []byte) error {
			e.conn, err = r.Accept(ctx, e.qp, verbs.ConnParam{PrivateData: private})
			return err
		})
		if err != nil {
			return err
		}
		if err := e.qp.Close(); err != nil {
			return err
		}
	}
}
