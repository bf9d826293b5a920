package native_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
	"cinnabar/stats"
)

type (
	reflectIn struct {
		Key    string
		Values []uint32 `proc:"counted=uint16"`
		Where  point
		Memory cinnabar.BulkHandle
		Unsent int `proc:"-"`
	}
	point struct{ X, Y float64 }
	tree  struct {
		Name     string
		Children []tree
		Parent   *tree `cereal:"shared"`
	}
)

// TestReflect reads the types of RPCs of all kinds, through the interceptors of the server.
// parity: A06
func TestReflect(t *testing.T) {
	seen := make(chan string, 100)
	server, ep := pair(t, tcp, &cinnabar.Config{Interceptors: []cinnabar.Interceptor{
		func(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
			seen <- c.RPC
			return next(ctx)
		},
	}}, nil)
	provider, err := server.NewProvider(7, "trees")
	must(t, err)
	must(t, native.New[reflectIn, uint32]("put").Handle(server, func(context.Context, reflectIn) (uint32, error) { return 0, nil }))
	must(t, native.NewStream[string, point]("track").Handle(server, func(context.Context, *native.ServerStream[string, point]) error { return nil }))
	must(t, cinnabar.NewOneWay[tree]("grow", cinnabar.WithFlavor(cinnabar.Thallium)).Handle(provider, func(context.Context, tree) error { return nil }))
	must(t, cinnabar.NewRPC[struct{}, struct{}]("fixed", cinnabar.WithID(9)).Handle(server, nil))
	ctx := patient(t)
	for _, err := range native.Reflect(ctx, ep, "") {
		wantError(t, err, codes.NoEntry)
	}
	must(t, native.HandleReflection(server))

	all := map[string]native.Description{}
	var ids []uint64
	for d, err := range native.Reflect(ctx, ep, "") {
		must(t, err)
		all[d.Name], ids = d, append(ids, d.ID)
	}
	if got := soon(t, "the interceptor", seen); got != "__native_reflect__" {
		t.Errorf("an interceptor has seen %q", got)
	}
	if !slices.IsSorted(ids) {
		t.Errorf("ids %x are not in order", ids)
	}
	for _, hidden := range []string{"__native_cancel__", "__native_stream__"} {
		if _, ok := all[hidden]; ok {
			t.Errorf("%s is described", hidden)
		}
	}
	put := all["put"]
	in, want := put.Types[put.In], []native.Field{{"Key", "", 1}, {"Values", "counted=uint16", 2}, {"Where", "", 4}, {"Memory", "", 6}}
	if in.Name != "cinnabar/native_test.reflectIn" || in.Kind != "struct" || !slices.Equal(in.Fields, want) || !put.Native || put.Codec != "hgproc" || put.String() != "put (native)" {
		t.Errorf("put is %+v", put)
	}
	if h := put.Types[6]; h.Kind != "custom" || h.Name != "cinnabar.BulkHandle" || put.Types[put.Out].Kind != "uint32" {
		t.Errorf("put has %+v", put.Types)
	}
	grow := all["grow"]
	node := grow.Types[grow.In]
	if node.Fields[2].Tag != "shared" || grow.Types[node.Fields[1].Type].Elem != grow.In || grow.Types[node.Fields[2].Type].Elem != grow.In || len(grow.Types) != 5 {
		t.Errorf("a type that refers to itself is %+v", grow)
	}
	if grow.String() != "grow@7 (thallium, one-way)" || grow.Codec != "cereal" {
		t.Errorf("grow is %v with codec %s", grow.String(), grow.Codec)
	}
	if d := all["track"]; d.String() != "track (stream)" || d.Types[d.Out].Name != "cinnabar/native_test.point" {
		t.Errorf("track is %v", d)
	}
	if d := all["fixed"]; d.Flavor != cinnabar.Mercury || d.ID != 9 {
		t.Errorf("fixed is %+v", d)
	}
	n := 0
	for d, err := range native.Reflect(ctx, ep, "put") {
		must(t, err)
		if n++; d.ID != put.ID || n > 1 {
			t.Errorf("asked for put, received %v", d.String())
		}
	}
	for d, err := range native.Reflect(ctx, ep, "none") {
		t.Errorf("asked for none, received %v, %v", d, err)
	}
}

// TestReflectPages reads more RPCs than one answer describes.
func TestReflectPages(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	must(t, native.HandleReflection(server))
	const many = 700
	for i := range many {
		must(t, native.New[reflectIn, point]("rpc"+strings.Repeat("x", i)).Handle(server, nil))
	}
	seen := map[string]bool{}
	for d, err := range native.Reflect(patient(t), ep, "") {
		must(t, err)
		if seen[d.Name] {
			t.Fatalf("%s is described twice", d.Name)
		}
		seen[d.Name] = true
	}
	for i := range many {
		if !seen["rpc"+strings.Repeat("x", i)] {
			t.Fatalf("RPC %d is not described", i)
		}
	}
}

// TestReflectTooOften has one host ask without a pause. The server refuses most of its questions, and answers another host; Reflect succeeds on both.
// parity: A06
func TestReflectTooOften(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has further loopback addresses")
	}
	server := listen(t, "ofi+tcp://0.0.0.0", nil)
	must(t, native.HandleReflection(server))
	port := server.Addr()[strings.LastIndexByte(server.Addr(), ':')+1:]
	ctx := patient(t)
	at := func(host string) *cinnabar.Endpoint {
		ep, err := open(t, "ofi+tcp://"+host, nil).Lookup("ofi+tcp://127.0.0.1:" + port)
		must(t, err)
		return ep
	}
	greedy, modest := at("127.0.0.2"), at("127.0.0.3")
	var refused error
	for range 1000 {
		if refused = native.ReflectOnce(ctx, greedy); refused != nil {
			break
		}
	}
	wantError(t, refused, codes.Again)
	must(t, native.ReflectOnce(ctx, modest))
	n := 0
	for _, err := range native.Reflect(ctx, greedy, "__native_reflect__") {
		must(t, err)
		n++
	}
	if n != 1 {
		t.Errorf("%d descriptions, want 1", n)
	}
	if !slices.ContainsFunc(server.Stats().Security.Events, func(e stats.SecurityEvent) bool {
		return e.Event == "refused" && strings.Contains(e.Cause, "too often") && e.Count > 0
	}) {
		t.Errorf("no refusal in %+v", server.Stats().Security.Events)
	}
}
