package debugpage

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"

	"cinnabar"
)

// labelOf returns the label of the running goroutine, as a profile shows it, and the one in ctx.
func labelOf(t *testing.T, ctx context.Context, text string) (inProfile bool, inContext string) {
	t.Helper()
	var b bytes.Buffer
	must(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	inContext, _ = pprof.Label(ctx, profileLabel)
	return strings.Contains(b.String(), fmt.Sprintf("# labels: {%q:%q}", profileLabel, text)), inContext
}

// TestLabelProfiles reads the labels of a handler, and of a goroutine that it has started, from a profile of goroutines.
func TestLabelProfiles(t *testing.T) {
	var inner []string
	cfg := &cinnabar.Config{Interceptors: []cinnabar.Interceptor{func(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
		if text, ok := pprof.Label(ctx, profileLabel); ok {
			inner = append(inner, text)
		}
		return next(ctx)
	}}}
	LabelProfiles(cfg)
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	const name = "labelled handler"
	rpc := cinnabar.NewRPC[struct{}, struct{}](name)
	failing := cinnabar.NewRPC[struct{}, struct{}]("failing")
	must(t, rpc.Handle(e, func(ctx context.Context, _ struct{}) (struct{}, error) {
		if inProfile, inContext := labelOf(t, ctx, name); !inProfile || inContext != name {
			t.Errorf("in the handler: a profile has the label: %v; the context has %q", inProfile, inContext)
		}
		return struct{}{}, nil
	}))
	must(t, failing.Handle(e, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, errOdd }))
	_, err = rpc.Call(t.Context(), e.Self(), struct{}{})
	must(t, err)
	if _, err := failing.Call(t.Context(), e.Self(), struct{}{}); err == nil {
		t.Error("the error of a handler is lost")
	}
	must(t, e.Shutdown(t.Context()))
	if got := fmt.Sprint(inner); got != fmt.Sprint([]string{name, "failing"}) {
		t.Errorf("the program's interceptor has seen the labels %v", got)
	}
	if inProfile, _ := labelOf(t, t.Context(), name); inProfile {
		t.Error("a goroutine has the label after the end of the handler")
	}
}

// TestLabelsBounded: names that are no good labels, and more than have labels of their own.
func TestLabelsBounded(t *testing.T) {
	l := &labels{rest: pprof.Labels(profileLabel, others)}
	l.byName.Store(&map[string]pprof.LabelSet{})
	text := func(name string) string {
		got := ""
		pprof.Do(t.Context(), l.of(name), func(ctx context.Context) { got, _ = pprof.Label(ctx, profileLabel) })
		return got
	}
	if got := text(strings.Repeat("x", maxName+1)); got != others {
		t.Errorf("a long name has the label %q", got)
	}
	if got := text(hostile); got != clean(hostile) || text(hostile) != got {
		t.Errorf("a hostile name has the label %q", got)
	}
	for i := range 10 * maxNames {
		text(fmt.Sprint("name ", i))
	}
	if n := len(*l.byName.Load()); n != maxNames {
		t.Errorf("%d names have labels, want %d", n, maxNames)
	}
	if got := text("name 5000"); got != others {
		t.Errorf("a name beyond the limit has the label %q", got)
	}
}

// BenchmarkLabel measures the labels of one handler.
func BenchmarkLabel(b *testing.B) {
	cfg := &cinnabar.Config{}
	LabelProfiles(cfg)
	info := &cinnabar.CallInfo{Server: true, RPC: "half"}
	b.ReportAllocs()
	for b.Loop() {
		_ = cfg.Interceptors[0](b.Context(), info, func(context.Context) error { return nil }) // the handler has no error
	}
}
