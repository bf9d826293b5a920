package peerbook

import (
	"slices"
	"testing"
)

// TestGivenUp ends calls of two connections by an answer, by a call with the same tag, and by the end of the connection.
func TestGivenUp(t *testing.T) {
	var g GivenUp[string, string]
	if _, ok := g.Answered("a", 1); ok || g.Lost("a") != nil || g.Len() != 0 {
		t.Error("the zero GivenUp has calls")
	}
	for c, calls := range map[string][]string{"a": {"a1", "a2", "a3"}, "b": {"b1"}} {
		for tag, call := range calls {
			if over := g.Add(c, uint32(tag+1), call, 1); over != nil {
				t.Errorf("%s has ended %v", call, over)
			}
		}
	}
	if call, ok := g.Answered("a", 2); !ok || call != "a2" {
		t.Errorf("the answer has ended %q", call)
	}
	if _, ok := g.Answered("a", 2); ok {
		t.Error("a second answer has ended a call")
	}
	if over := g.Add("a", 3, "a3 again", 1); !slices.Equal(over, []string{"a3"}) {
		t.Errorf("a call with the same tag has ended %q", over)
	}
	if calls := slices.Sorted(g.Of("a")); !slices.Equal(calls, []string{"a1", "a3 again"}) {
		t.Errorf("the calls are %q", calls)
	}
	if calls := g.Lost("a"); len(calls) != 2 || g.Len() != 1 || len(slices.Collect(g.Of("a"))) != 0 {
		t.Errorf("the end of the connection has ended %q, and %d calls are left", calls, g.Len())
	}
	for range g.Of("b") {
		break
	}
}

// TestGivenUpIsBounded adds more calls, and more handles, than a connection remembers. Answers do not make the list of the order grow.
func TestGivenUpIsBounded(t *testing.T) {
	var g GivenUp[int, int]
	for i := range 3 * MaxGivenUp {
		if over := g.Add(1, uint32(i), i, 1); (len(over) > 0) != (i >= MaxGivenUp) || len(over) > 0 && over[0] != i-MaxGivenUp {
			t.Fatalf("call %d has ended %v", i, over)
		}
	}
	if over := g.Add(1, 0, 0, MaxGivenUpHandles+1); len(over) != MaxGivenUp || g.Len() != 1 {
		t.Errorf("a call with more handles than all may have has ended %d calls, and %d are left", len(over), g.Len())
	}
	const first = 5 * MaxGivenUp // a call that stays
	g.Add(2, first, first, 1)
	for i := range first {
		g.Add(2, uint32(i), i, 1)
		if call, ok := g.Answered(2, uint32(i)); !ok || call != i {
			t.Fatalf("the answer to call %d has ended %d", i, call)
		}
	}
	if n := len(g.conns[2].order); n > 2*MaxGivenUp || g.conns[2].handles != 1 {
		t.Errorf("%d calls are listed, and %d handles counted", n, g.conns[2].handles)
	}
	if g.Answered(2, first); g.conns[2] != nil { // it would stay for good: a transport does not call Lost if Len is 0
		t.Errorf("a connection without calls is kept, with %d in the order", len(g.conns[2].order))
	}
}
