package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cinnabar/examples/course/internal/lab"
)

// student is the test of an exercise, as far as Run uses it.
type student struct {
	testing.TB
	skipped, failed string
}

// stop is the value of the panic that ends a student's test.
type stop struct{}

func (s *student) Helper() {}

func (s *student) Skipf(format string, args ...any) {
	s.skipped = fmt.Sprintf(format, args...)
	panic(stop{})
}

func (s *student) Fatal(args ...any) {
	s.failed = fmt.Sprint(args...)
	panic(stop{})
}

// outcome returns the outcome of an exercise's test.
func outcome(t *testing.T, e Exercise) (s *student) {
	s = &student{TB: t}
	defer func() {
		if r := recover(); r != nil && r != (stop{}) {
			panic(r)
		}
	}()
	Run(s, e)
	return s
}

// The error of a peer says that the function of the student has returned, because the peer may wait for a message that the function has not
// sent.
func TestBeside(t *testing.T) {
	waits, refuses := errors.New("the peer waits"), errors.New("the function refuses")
	fails := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for _, c := range []struct {
		student, peer error
		want          string
	}{
		{nil, nil, ""},
		{nil, waits, "the function returns no error, but the peer waits"},
		{refuses, nil, "the function refuses"},
	} {
		got := ""
		if err := beside(t.Context(), fails(c.student), fails(c.peer)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("the function returns %v and the peer %v: the error is %q, want %q", c.student, c.peer, got, c.want)
		}
	}
}

// An unsolved exercise is skipped, or fails if the environment asks for that. A wrong solution fails in any case.
func TestRun(t *testing.T) {
	const hint = "post a receive"
	unsolved := func(context.Context) error { return lab.Unsolved("Echo", hint) }
	wrong := func(context.Context) error { return errors.New("the peer waits") }
	right := func(context.Context) error { return nil }
	for _, course := range []string{"", "1"} {
		t.Run("COURSE="+course, func(t *testing.T) {
			t.Setenv(Env, course)
			s := outcome(t, unsolved)
			if text := s.skipped + s.failed; !strings.Contains(text, hint) || !strings.Contains(text, "exercise.go") {
				t.Errorf("the message of an unsolved exercise is %q", text)
			}
			if failed := s.failed != ""; failed != (course == "1") {
				t.Errorf("an unsolved exercise: skipped with %q, failed with %q", s.skipped, s.failed)
			}
			if s := outcome(t, wrong); s.failed != "the peer waits" || s.skipped != "" {
				t.Errorf("a wrong solution: skipped with %q, failed with %q", s.skipped, s.failed)
			}
			if s := outcome(t, right); s.failed != "" || s.skipped != "" {
				t.Errorf("a right solution: skipped with %q, failed with %q", s.skipped, s.failed)
			}
		})
	}
}
