package envelope

import "testing"

// cancelFunc is a function as a call.
type cancelFunc func()

func (f cancelFunc) Cancel() { f() }

// TestTable cancels calls before, while and after they are in the table.
func TestTable(t *testing.T) {
	var table Table
	a, b := make(chan struct{}), make(chan struct{})
	cancelled := map[string]int{}
	add := func(conn <-chan struct{}, id uint64, name string) (early, ok bool) {
		return table.Add(conn, id, cancelFunc(func() { cancelled[name]++ }))
	}
	if !table.Empty() {
		t.Error("a new table is not empty")
	}
	if early, ok := add(a, 1, "a1"); early || !ok || table.Empty() {
		t.Errorf("add: %v, %v", early, ok)
	}
	if _, ok := add(a, 1, "again"); ok {
		t.Error("two calls of one connection have the same id")
	}
	if early, ok := add(b, 1, "b1"); early || !ok {
		t.Errorf("add: %v, %v", early, ok)
	}
	table.Cancel(a, []uint64{0, 1, 2})
	if cancelled["a1"] != 1 || len(cancelled) != 1 {
		t.Errorf("cancelled %v", cancelled)
	}
	if early, _ := add(b, 2, "b2"); early {
		t.Error("a call is cancelled by another connection")
	}
	if early, ok := add(a, 2, "a2"); !early || !ok {
		t.Errorf("a call that was cancelled before it came: %v, %v", early, ok)
	}
	table.Remove(a, 2)
	if early, _ := add(a, 2, "a2"); early {
		t.Error("one cancel cancels two calls")
	}
	for _, id := range []uint64{1, 2} {
		table.Remove(a, id)
		table.Remove(b, id)
	}
	if !table.Empty() {
		t.Errorf("%d calls are left", len(table.calls))
	}
}

// TestTableBounds sends more cancels of unknown calls than the table keeps.
func TestTableBounds(t *testing.T) {
	var table Table
	conn := make(chan struct{})
	var ids []uint64
	for id := range uint64(10 * earlyEach) {
		ids = append(ids, id+1)
	}
	table.Cancel(conn, ids)
	for i, id := range ids {
		if early, _ := table.Add(conn, id, cancelFunc(func() {})); early != (i >= len(ids)-earlyEach) {
			t.Errorf("call %d of %d is cancelled: %v", i, len(ids), early)
		}
	}
	for range 2 * earlyConns {
		table.Cancel(make(chan struct{}), ids)
	}
	if n := len(table.early); n > earlyConns {
		t.Errorf("cancels of %d connections are kept, at most %d", n, earlyConns)
	}
}
