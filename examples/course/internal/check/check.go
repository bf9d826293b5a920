// Package check has the checks of the course's exercises. A check runs the function of a student against a peer, and returns an error
// that names the mistake and a hint.
//
//	func TestExercise(t *testing.T) { check.Run(t, check.Echo(Echo)) }
//
// Each check is a function with the name of the exercise. The exercises' own tests call it with the function of the student, and the
// tests of package solutions with a solution.
package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Env is the environment variable that makes an unsolved exercise fail instead of being skipped, if its value is 1.
const Env = "COURSE"

// limit is the time that a check gives a function. It decides only about functions that wait for ever.
const limit = time.Minute

// Exercise checks one function of a student. It returns nil if the function solves the exercise, and an error that matches
// lab.ErrUnsolved if the function is as it was delivered.
type Exercise func(ctx context.Context) error

// Run checks an exercise in its test. An unsolved exercise is skipped, unless the variable Env asks for a failure.
func Run(t testing.TB, e Exercise) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("nothing has happened for %v: an event has not come, such as the completion of a request that is not posted or not Signaled", limit))
	defer cancel()
	err := e(ctx)
	switch {
	case unsolved(err) && os.Getenv(Env) != "1":
		t.Skipf("%v. With %s=1 this test fails instead", err, Env)
	case err != nil:
		t.Fatal(err)
	}
}

// unsolved reports whether a function is as it was delivered.
func unsolved(err error) bool { return errors.Is(err, lab.ErrUnsolved) }

// withLab opens a Lab for a check and closes it. Close fails while an object is open that the function of the student has made.
func withLab(cfg iwarp.Config, do func(l *lab.Lab) error) (err error) {
	l, err := lab.Open(cfg, nil)
	if err != nil {
		return err
	}
	defer func() {
		closeErr := l.Close()
		if errors.Is(closeErr, verbs.ErrBusy) {
			closeErr = fmt.Errorf("the function leaves an object open; a region of End.Alloc is closed by the test, one of PD.AllocMR or PD.RegMR by the function or its caller: %w", closeErr)
		}
		err = errors.Join(err, closeErr)
	}()
	return do(l)
}

// withPair makes a connection for a check.
func withPair(ctx context.Context, cfg iwarp.Config, do func(client, server *lab.End) error) error {
	return withLab(cfg, func(l *lab.Lab) error {
		client, server, err := l.Connect(ctx, verbs.ConnParam{})
		if err != nil {
			return err
		}
		return do(client, server)
	})
}

// beside runs the function of a student in a goroutine while peer runs. If one of them fails, the context of the other one ends, because
// it would wait for messages that do not come. The result has the errors of both, without those that come from the other's failure.
func beside(parent context.Context, student, peer func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		err := student(ctx)
		if err != nil {
			cancel(err)
		}
		done <- err
	}()
	peerErr := peer(ctx)
	if peerErr != nil {
		cancel(peerErr)
	}
	err := <-done
	switch {
	case err == nil && peerErr != nil:
		return fmt.Errorf("the function returns no error, but %w", peerErr)
	case peerErr == nil:
		return err
	case parent.Err() != nil: // nothing happens any more: the peer's error has the event that is missing
		return peerErr
	case errors.Is(peerErr, err):
		return err
	case errors.Is(err, peerErr), errors.Is(err, context.Canceled):
		return peerErr
	}
	return errors.Join(err, peerErr)
}

// wait is End.Wait with the event in its error.
func wait(ctx context.Context, e *lab.End, event string) (verbs.WC, error) {
	wc, err := e.Wait(ctx)
	if err != nil {
		return wc, fmt.Errorf("%s: %w", event, err)
	}
	return wc, nil
}

// barrier returns when all that client has posted before is in the memory of server, by a message that consumes a receive of server.
func barrier(ctx context.Context, client, server *lab.End) error {
	if err := server.Receive(0, nil); err != nil {
		return err
	}
	if err := client.Send(verbs.SendWR{Op: verbs.OpSend}); err != nil {
		return err
	}
	_, err := wait(ctx, server, "the check's own message behind the operations of the function")
	return err
}
