package na

import (
	"errors"
	"fmt"
	"testing"
)

// recorder remembers completions.
type recorder struct {
	op    Op
	times int
	again func(op *Op)
}

func (r *recorder) Complete(op *Op) {
	r.times++
	if r.again != nil {
		r.again(op)
	}
}

func TestOp(t *testing.T) {
	r := &recorder{}
	r.op.Done = r
	r.op.Begin()
	r.op.Transport = "something"
	why := errors.New("why")
	r.op.Finish(7, why)
	if r.times != 1 || r.op.N != 7 || !errors.Is(r.op.Err, why) || r.op.Transport != nil {
		t.Errorf("after Finish: %d completions, %+v", r.times, &r.op)
	}
	r.op.Begin()
	if r.op.N != 0 || r.op.Err != nil {
		t.Errorf("after Begin: N %d, Err %v", r.op.N, r.op.Err)
	}
	r.op.Finish(0, nil)
}

// TestOpStartsAnew starts an operation from its own completion.
func TestOpStartsAnew(t *testing.T) {
	r := &recorder{}
	r.again = func(op *Op) {
		if r.times < 3 {
			op.Begin()
			op.Finish(0, nil)
		}
	}
	r.op.Done = r
	r.op.Begin()
	r.op.Finish(0, nil)
	if r.times != 3 {
		t.Errorf("%d completions, want 3", r.times)
	}
}

func TestOpMisuse(t *testing.T) {
	for name, misuse := range map[string]func(op *Op){
		"started twice":           func(op *Op) { op.Begin(); op.Begin() },
		"completed without start": func(op *Op) { op.Finish(0, nil) },
		"completed twice":         func(op *Op) { op.Begin(); op.Finish(0, nil); op.Finish(0, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			r := &recorder{}
			r.op.Done = r
			misuse(&r.op)
		})
	}
}

func TestError(t *testing.T) {
	cause := errors.New("connection reset by peer")
	err := &Error{Kind: Unreachable, Op: "get", Addr: "ofi+tcp://127.0.0.1:1", Err: cause}
	if got, want := err.Error(), "get ofi+tcp://127.0.0.1:1: unreachable: connection reset by peer"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := (&Error{Kind: Closed, Op: "register"}).Error(), "register: endpoint closed"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, cause) || KindOf(fmt.Errorf("call: %w", err)) != Unreachable || KindOf(cause) != 0 || KindOf(nil) != 0 {
		t.Error("the cause or the kind is not found")
	}
	for k := Unreachable; k <= NotAvailable; k++ {
		if kinds[k] == "" {
			t.Errorf("kind %d has no name", k)
		}
	}
	if got := Kind(99).String(); got != "kind 99" {
		t.Errorf("Kind(99) is %q", got)
	}
}
