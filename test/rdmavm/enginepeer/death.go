package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/stats"
)

const (
	// large is the size in bytes of the transfers during which the victim dies. It is so large that a process dies before such a transfer ends.
	large = 64 << 20
	// small is the size in bytes of the transfer before that one, which shows that the victim can reach the memory.
	small = 1 << 20
	// soon bounds the time until the survivor notices the death.
	soon = 10 * time.Second
	// newcomers is the number of engines of the survivor that connect to the victim while it dies.
	newcomers = 10
	// restBefore is the time for which the victim rests before it dies in phase idle, so that nothing is under way then.
	restBefore = 200 * time.Millisecond
	// glance is the interval at which the survivor looks at its connections.
	glance = 5 * time.Millisecond
)

// phases are the phases that the package documentation describes.
var phases = []string{"connect", "handler", "oneway", "pull", "push", "lend-pull", "lend-push", "idle"}

// killSelf ends this process at once.
func killSelf() error {
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil {
		return err
	}
	select {}
}

// die does the victim's part of a phase. It returns only if something has failed before this process kills itself.
func (s *side) die(ctx context.Context, in doomIn) error {
	survivor := cinnabar.InfoFrom(ctx).Peer
	switch in.Phase {
	case "connect", "handler", "oneway":
		return killSelf()
	case "idle":
		time.AfterFunc(restBefore, func() { _ = killSelf() }) // returns only if there is no such process
		return nil
	}
	b, err := s.e.Alloc(cinnabar.ReadWrite, large)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // runs only if something has failed
	remote, push := in.Bulk.On(survivor), strings.HasSuffix(in.Phase, "push")
	start := cinnabar.RemoteBulk.StartPull
	if push {
		start = cinnabar.RemoteBulk.StartPush
	}
	switch in.Phase {
	case "pull", "push":
		if _, err := start(remote.Slice(0, small), ctx, b.Slice(0, small)).Wait(); err != nil {
			return err
		}
		start(remote, ctx, b)
		return killSelf()
	}
	_, err = take.Call(ctx, survivor, takeIn{Push: push, Bulk: b.Handle()}) // the survivor calls now, which kills this process
	return err
}

// take does the survivor's part of the phases lend-pull and lend-push.
func (s *side) take(ctx context.Context, in takeIn) error {
	victim := cinnabar.InfoFrom(ctx).Peer
	err := s.transfer(ctx, in, victim)
	phase := "lend-pull"
	if in.Push {
		phase = "lend-push"
	}
	s.verdicts.taken(phase, err)
	return err
}

// transfer transfers memory of the victim, and sends now when the transfer has begun. It repeats the transfer until that ends with an error,
// for soon at most, because a transfer may be over before the victim kills itself. It returns the error of the transfer, or the error of
// sending now.
func (s *side) transfer(ctx context.Context, in takeIn, victim *cinnabar.Endpoint) error {
	b, err := s.e.Alloc(cinnabar.ReadWrite, large)
	if err != nil {
		return err
	}
	start := cinnabar.RemoteBulk.StartPull
	if in.Push {
		start = cinnabar.RemoteBulk.StartPush
	}
	p := start(in.Bulk.On(victim), ctx, b)
	if err := now.Send(ctx, victim, none{}); err != nil && !aboutPeer(err) {
		return err
	}
	_, err = p.Wait()
	for begin := time.Now(); err == nil && time.Since(begin) < soon; { // the transfer was over before the victim's death
		_, err = start(in.Bulk.On(victim), ctx, b).Wait()
	}
	return errors.Join(err, b.Close())
}

// aboutPeer reports whether err says that the peer is lost.
func aboutPeer(err error) bool {
	code := codes.Of(err)
	return code == codes.HostUnreach || code == codes.IOError || code == codes.Canceled
}

// aboutMemory reports whether err says that the peer is lost, or that its device has refused an access to its memory. The kernel releases the
// objects of a killed process one after the other, so the memory can be gone while the queue pair still answers.
func aboutMemory(err error) bool { return aboutPeer(err) || codes.Of(err) == codes.Permission }

// survive makes the victim kill itself in a phase. It returns an error unless the calls and transfers of this side end with an error about
// the peer in less than soon.
func (s *side) survive(ctx context.Context, victim *cinnabar.Endpoint, phase string) (err error) {
	b, err := s.e.Alloc(cinnabar.ReadWrite, large)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	in := doomIn{Phase: phase, Bulk: b.Handle()}
	if err := echoed(ctx, victim, nil); err != nil { // so that there is a connection
		return err
	}
	lent := s.verdicts.expect(phase)
	begin := time.Now()
	switch phase {
	case "connect", "oneway", "idle":
		if err := doomed.Send(ctx, victim, in); err != nil {
			return err
		}
	}
	switch phase {
	case "connect":
		err = s.arrive(ctx, victim)
	case "oneway":
		for err == nil && time.Since(begin) < soon {
			_, err = echo.Call(ctx, victim, content{})
		}
	case "idle": // nothing is under way, so nothing fails
	default:
		_, err = doom.Call(ctx, victim, in)
	}
	if fails := phase != "connect" && phase != "idle"; (fails || err != nil) && !aboutPeer(err) {
		return fmt.Errorf("the call in phase %s ends with %w, which is not about the peer", phase, noError(err))
	}
	if lent != nil {
		if err := <-lent; !aboutMemory(err) {
			return fmt.Errorf("the transfer in phase %s ends with %w, which is not about the peer or its memory", phase, noError(err))
		}
	}
	if took := time.Since(begin); took > soon {
		return fmt.Errorf("phase %s: the death of the peer was noticed after %v", phase, took)
	}
	if err := s.lost(ctx, victim); err != nil {
		return err
	}
	if st := s.e.Stats(); st.CallsActive != 0 || st.TransfersActive != 0 {
		return fmt.Errorf("phase %s: %d calls and %d transfers are active after the death of the peer", phase, st.CallsActive, st.TransfersActive)
	}
	return nil
}

// arrive opens engines of this side, each of which connects to the victim while it dies. It returns nil if all their calls were answered, and otherwise
// an error of a call, which is about the peer only if all errors are.
func (s *side) arrive(ctx context.Context, victim *cinnabar.Endpoint) (err error) {
	ended := make(chan error, newcomers)
	for range newcomers {
		go func() { ended <- s.arriveOnce(ctx, victim) }()
	}
	for range newcomers {
		if callErr := <-ended; callErr != nil && (err == nil || aboutPeer(err)) {
			err = callErr
		}
	}
	return err
}

// arriveOnce opens an engine, which calls the victim.
func (s *side) arriveOnce(ctx context.Context, victim *cinnabar.Endpoint) (err error) {
	e, err := cinnabar.Listen(ctx, s.anyPort, &cinnabar.Config{Device: s.dev, DialRetry: dialRetry})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	to, err := e.Lookup(victim.String())
	if err != nil {
		return err
	}
	_, err = echo.Call(ctx, to, content{})
	return err
}

// lost waits until this side has no connection with the victim. It returns an error if that takes longer than soon.
func (s *side) lost(ctx context.Context, victim *cinnabar.Endpoint) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), soon) // because the context of a handler ends with the victim, its caller
	defer cancel()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		connected := slices.ContainsFunc(s.e.State(-1).Connections, func(c stats.Connection) bool { return c.Peer == victim.String() })
		if !connected {
			return nil
		}
		select {
		case <-tick.C:
		case <-limited.Done():
			return fmt.Errorf("there is still a connection with %s: %w", victim, context.Cause(limited))
		}
	}
}

// noError returns err, or if that is nil an error with the text "no error".
func noError(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// kill makes the server kill itself in a phase, and then calls its address until a new server responds.
func (s *side) kill(ctx context.Context, server *cinnabar.Endpoint, phase string, out io.Writer) error {
	if err := s.survive(ctx, server, phase); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "survived"); err != nil {
		return err
	}
	for {
		err := echoed(ctx, server, pattern(1, small))
		if err == nil {
			return s.moved(ctx, server, small, 1, true, 1)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the new server: %w", err)
		}
		if !aboutPeer(err) {
			return fmt.Errorf("the new server: %w, which is not about the peer", err)
		}
	}
}

// avenge does the server's part in -die. The client, which calls it, is the victim.
func (s *side) avenge(ctx context.Context, in phaseIn) (none, error) {
	if !slices.Contains(phases, in.Phase) {
		return none{}, fmt.Errorf("%q is no phase", in.Phase)
	}
	err := s.survive(ctx, cinnabar.InfoFrom(ctx).Peer, in.Phase)
	s.verdicts.set(in.Phase, err)
	return none{}, err
}

// verdicts holds the result of each phase on the surviving side. Each phase occurs once in a process.
type verdicts struct {
	mu   sync.Mutex
	ends map[string]*end
}

// end is the result of one phase.
type end struct {
	known    chan struct{} // closed when verdict is set
	verdict  verdict
	transfer chan error // capacity 1: the error of the survivor's own transfer
}

func (v *verdicts) init() {
	v.ends = map[string]*end{}
	for _, phase := range phases {
		v.ends[phase] = &end{known: make(chan struct{}), transfer: make(chan error, 1)}
	}
}

// expect returns the channel for the error of the survivor's transfer, or nil in a phase in which the survivor makes none.
func (v *verdicts) expect(phase string) <-chan error {
	if strings.HasPrefix(phase, "lend") {
		return v.ends[phase].transfer
	}
	return nil
}

// taken records the error of the survivor's transfer.
func (v *verdicts) taken(phase string, err error) {
	select {
	case v.ends[phase].transfer <- err:
	default: // a second one
	}
}

// set records the result of a phase: err, or nil if the survivor noticed the death as it must.
func (v *verdicts) set(phase string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.ends[phase]
	select {
	case <-e.known:
		return
	default:
	}
	if err != nil {
		e.verdict.Text = err.Error()
	}
	close(e.known)
}

// wait waits for the result of a phase, and returns it.
func (v *verdicts) wait(ctx context.Context, phase string) (verdict, error) {
	e := v.ends[phase]
	if e == nil {
		return verdict{}, fmt.Errorf("%q is no phase", phase)
	}
	var err error
	cinnabar.Block(ctx, func() {
		select {
		case <-e.known:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	})
	return e.verdict, err
}
