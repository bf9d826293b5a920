// Package peerproc gives a job between two processes a peer that no user has to start: the
// command runs its own executable again with a hidden sub-command.
//
// The peer learns a secret on its standard input, listens on loopback and
// prints the address on its standard output. A process that connects there has to
// show the secret first, because any local process could. The input stays open
// for as long as the parent lives: its end ends the peer, however the parent
// ended, so no peer is left behind.
package peerproc

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
)

const (
	startTimeout = 10 * time.Second
	stopTimeout  = 3 * time.Second
)

// Process is a running peer.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	secret string
	addr   netip.AddrPort // where it waits for the exchange
}

// Start runs the executable again with the given sub-command and its options, and waits
// until it listens. The caller ends it with Stop.
func Start(ctx context.Context, stderr io.Writer, subcommand ...string) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start the peer process: find the own executable: %w", err)
	}
	if level := cli.LogLevelOf(ctx); level != "" {
		subcommand = append(subcommand, "--log-level", level)
	}
	p := &Process{cmd: exec.CommandContext(ctx, exe, subcommand...), secret: crand.Text()}
	p.cmd.Stderr = stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the peer process: %w", err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the peer process: %w", err)
	}
	p.cmd.Cancel = stdin.Close // asks the peer to end; WaitDelay later it is killed
	p.cmd.WaitDelay = stopTimeout
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the peer process: %w", err)
	}
	if err := p.greet(ctx, stdin, stdout); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// greet sends the peer the secret and reads the address at which the peer listens, both within startTimeout.
func (p *Process) greet(ctx context.Context, stdin io.Writer, stdout io.ReadCloser) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { cli.Shut(stdout) })()
	if _, err := io.WriteString(stdin, p.secret+"\n"); err != nil {
		return fmt.Errorf("the peer process ended before it was ready: %w", err)
	}
	line, err := bufio.NewReader(io.LimitReader(stdout, link.ExchangeLimit)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the peer process did not say where it listens: %w", cli.Reason(ctx, err))
	}
	if p.addr, err = netip.ParseAddrPort(line[:len(line)-1]); err != nil {
		return fmt.Errorf("the peer process gave no address: %w", err)
	}
	return nil
}

// Stop asks the peer to end, waits for it, and reports how it ended. After
// stopTimeout it is killed, so that stop always returns and nothing is left.
func (p *Process) Stop() error {
	cli.Shut(p.stdin) // a second close does no harm

	// Killing fails only if the process has ended.
	kill := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the peer process failed: %w", err)
	}
	return nil
}

// Killed reports whether err, an error of Stop, says that a signal has ended the peer.
func Killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() == -1
}

// Pid returns the process id of the peer.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Meet connects to the peer and shows the secret.
func (p *Process) Meet(ctx context.Context) (*link.Exchange, error) {
	ctx, cancel := context.WithTimeout(ctx, link.ExchangeTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", p.addr.String())
	if err != nil {
		return nil, fmt.Errorf("connect to the peer process: %w", err)
	}
	x := link.NewExchange(c)
	if err := x.Send(p.secret); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// Main is the peer's side of Start: it reads the secret, prints where
// it listens, and calls serve with the connection of the client that shows the secret.
// The context that serve gets ends when the parent does.
func Main(ctx context.Context, s cli.Streams, serve func(context.Context, *link.Exchange) error) error {
	in := bufio.NewReader(s.In)
	secret, err := in.ReadString('\n')
	if err != nil {
		return errors.New("this command is started by others: the commands demo and compare start it as their second process")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with the input, at the latest with the process
		_, _ = io.Copy(io.Discard, in) // however it ends, it ended
		cancel(cli.ErrParentEnded)
	}()
	x, err := acceptSecret(ctx, secret[:len(secret)-1], s.Out)
	if err != nil {
		return err
	}
	defer cli.Shut(x)
	if err := serve(ctx, x); err != nil {
		awaitEnd(ctx)
		return cli.Reason(ctx, err)
	}
	return nil
}

// awaitEnd waits until ctx ends, but for no longer than a tenth of stopTimeout. A parent
// that stops ends both its connection and the standard input, and the peer may notice the
// end of the connection first.
func awaitEnd(ctx context.Context) {
	t := time.NewTimer(stopTimeout / 10)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// acceptSecret listens, prints the address, and returns the first connection
// that shows the secret. Others are closed.
func acceptSecret(ctx context.Context, secret string, out io.Writer) (*link.Exchange, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen on loopback: %w", err)
	}
	defer cli.Shut(l)
	defer cli.InterruptAccept(ctx, l)()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return nil, err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return nil, fmt.Errorf("wait for the parent process: %w", cli.Reason(ctx, err))
		}
		if x := link.NewExchange(c); shows(ctx, x, secret) {
			return x, nil
		}
		cli.Shut(c)
	}
}

// shows reports whether the first message from the other side of x is the secret.
func shows(ctx context.Context, x *link.Exchange, secret string) bool {
	ctx, cancel := context.WithTimeout(ctx, link.ExchangeTimeout)
	defer cancel()
	var got string
	return x.Receive(ctx, &got) == nil && subtle.ConstantTimeCompare([]byte(got), []byte(secret)) == 1
}
