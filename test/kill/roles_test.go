//go:build unix

package kill

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/xfer"
)

// The roles of the two processes.
const (
	roleSend = "send"
	roleRecv = "recv"
)

// The variables that say what a process does.
const (
	stepEnv       = "CINNABAR_KILL_STEP" // number of the fatal step
	stopEnv       = "CINNABAR_KILL_STOP" // stop there instead of dying
	variantEnv    = "CINNABAR_KILL_VARIANT"
	pathEnv       = "CINNABAR_KILL_PATH" // the file to send, or the directory
	peerEnv       = "CINNABAR_KILL_PEER" // address of the receiver
	timeoutEnv    = "CINNABAR_KILL_TIMEOUT"
	wordAddr      = "address" // what a process says, one line each
	wordConnected = "connected"
	wordStep      = "step"
	wordSteps     = "steps"
	wordDone      = "done"
)

// variant is one way in which a file crosses.
type variant struct {
	name     string
	protocol xfer.Protocol
	plain    bool // no immediate data
}

var variants = []variant{
	{"basic", xfer.Basic, false},
	{"basic-without-immediates", xfer.Basic, true},
	{"fast", xfer.Fast, false},
}

func TestMain(m *testing.M) {
	testproc.Main(map[string]func([]string) error{
		roleSend: func([]string) error { return play(send) },
		roleRecv: func([]string) error { return play(recv) },
	})
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // tests that run beside others wait for timeouts
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var saying sync.Mutex

// say tells the test something, in one line and one call.
func say(format string, args ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Printf(format+"\n", args...)
}

// play is a process that sends or receives.
func play(role func(*steps, variant, time.Duration) error) error {
	var fatal int64
	if text := os.Getenv(stepEnv); text != "" {
		if _, err := fmt.Sscan(text, &fatal); err != nil {
			return fmt.Errorf("%s: %w", stepEnv, err)
		}
	}
	s := newSteps(fatal, os.Getenv(stopEnv) != "")
	limit, err := time.ParseDuration(os.Getenv(timeoutEnv))
	if err != nil {
		return fmt.Errorf("%s: %w", timeoutEnv, err)
	}
	for _, v := range variants {
		if v.name != os.Getenv(variantEnv) {
			continue
		}
		return role(s, v, limit)
	}
	return errors.New("no such variant")
}

// send sends one file.
func send(s *steps, v variant, limit time.Duration) (err error) {
	addr, err := netip.ParseAddrPort(os.Getenv(peerEnv))
	if err != nil {
		return err
	}
	dev, err := s.device(v.plain)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	src, f, err := xfer.OpenFile(os.Getenv(pathEnv), false)
	if err != nil {
		return err
	}
	defer f.Close()
	src.Data = source{f, s}
	sender := xfer.Sender{Protocol: v.protocol, Window: 2, Chunk: chunk, Timeout: limit}
	_, err = sender.Send(context.Background(), dev, addr, src)
	say("%s %d", wordSteps, s.n.Load())
	return err
}

// recv receives files until standard input ends.
func recv(s *steps, v variant, limit time.Duration) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	dir, err := xfer.OpenDir(ctx, os.Getenv(pathEnv), xfer.DirOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	dev, err := s.device(v.plain)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return err
	}
	defer l.Close()
	say("%s %s", wordAddr, l.Addr())
	r := xfer.Receiver{
		Timeout: limit,
		Open: func(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
			s.at("before making the file")
			f, err := dir.Open(ctx, from, name, meta, size)
			if err != nil {
				return nil, err
			}
			s.at("after making the file")
			return target{f, s}, nil
		},
		Done: func(res xfer.Result, err error) {
			say("%s %s %s", wordDone, res.Peer, outcome(err))
		},
	}
	err = r.Serve(ctx, l)
	say("%s %d", wordSteps, s.n.Load())
	return err
}

// outcome is err in one line.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
