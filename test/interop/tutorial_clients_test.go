//go:build linux

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/internal/recording"
)

// caller is a client of a tutorial. What it says to the tutorial's server is recorded in testdata/wire, of a Mercury that computes
// checksums under the same name with _crc behind it.
type caller struct {
	name           string // of the recording
	client, server string
	arguments      []string // of the client, behind the server's address
	serve          func(t *testing.T, e *cinnabar.Engine)
}

var callers = []caller{
	{name: "thallium_tutorial_hello", client: "02_tl_client", server: "02_tl_server", serve: func(t *testing.T, e *cinnabar.Engine) {
		must(t, cinnabar.NewOneWay[none]("hello", inThallium).Handle(e, func(context.Context, none) error { return nil }))
	}},
	{name: "thallium_tutorial_args", client: "03_tl_client", server: "03_tl_server", serve: serveTutorialSum},
	{name: "thallium_tutorial_lambdas", client: "04_tl_client", server: "04_tl_server", serve: serveTutorialSum},
	{name: "thallium_tutorial_stop", client: "05_tl_client", server: "05_tl_server", serve: func(t *testing.T, e *cinnabar.Engine) {
		must(t, tlSum.Handle(e, func(ctx context.Context, in numbers) (int32, error) { return in.X + in.Y, e.Shutdown(ctx) }))
	}},
	{name: "thallium_tutorial_stl", client: "05_stl_client", server: "06_tl_server", serve: func(t *testing.T, e *cinnabar.Engine) {
		must(t, tlHello.Handle(e, func(context.Context, string) error { return nil }))
	}},
	{name: "thallium_tutorial_serialization", client: "06_custom_client", server: "06_custom_server", serve: func(t *testing.T, e *cinnabar.Engine) {
		must(t, dotProduct.Handle(e, func(_ context.Context, in [2]point) (point, error) {
			return point{X: in[0].X*in[1].X + in[0].Y*in[1].Y + in[0].Z*in[1].Z}, nil
		}))
	}},
	{name: "thallium_tutorial_rdma", client: "07_rdma_client", server: "08_tl_server", serve: serveTutorialRDMA},
	{name: "thallium_tutorial_providers", client: "09_tl_client", server: "09_tl_server", arguments: []string{"22"}, serve: serveTutorialProvider},
	{name: "thallium_tutorial_pool", client: "12_tl_client", server: "12_tl_server", serve: serveTutorialSum},
	{name: "thallium_tutorial_async", client: "14_tl_client", server: "14_tl_server", serve: serveTutorialSum},
	{name: "thallium_tutorial_context", client: "16_tl_client", server: "16_tl_server", serve: serveTutorialContext},
}

// margoCallers are clients of Margo's tutorials. TestReplayMargoExamples plays the recordings of a Mercury without checksums.
var margoCallers = []caller{
	{name: "tutorial_hello", client: "02_margo_client", server: "02_margo_server", serve: theirTutorial((*theirs).serveHello)},
	{name: "tutorial_sum", client: "03_margo_client", server: "03_margo_server", serve: theirTutorial((*theirs).serveSum)},
	{name: "tutorial_bulk", client: "04_margo_client", server: "04_margo_server", serve: theirTutorial((*theirs).serveBulk)},
	{name: "tutorial_async", client: "05_margo_client", server: "05_margo_server", serve: theirTutorial((*theirs).serveSum)},
	{name: "tutorial_provider", client: "06_margo_client", server: "06_margo_server", arguments: []string{"42"}, serve: theirTutorial((*theirs).serveAlpha)},
}

// theirTutorial registers the procedures of a server of Margo's tutorial on an engine.
func theirTutorial(serve func(*theirs)) func(*testing.T, *cinnabar.Engine) {
	return func(t *testing.T, e *cinnabar.Engine) {
		t.Helper()
		serve(&theirs{t, e, make(chan string, 8)}) // more than any client says
	}
}

func sumNumbers(_ context.Context, in numbers) (int32, error) { return in.X + in.Y, nil }

func serveTutorialSum(t *testing.T, e *cinnabar.Engine) {
	t.Helper()
	must(t, tlSum.Handle(e, sumNumbers))
}

func serveTutorialRDMA(t *testing.T, e *cinnabar.Engine) {
	t.Helper()
	must(t, cinnabar.NewRPC[cinnabar.BulkHandle, none]("do_rdma", inThallium).Handle(e, func(ctx context.Context, in cinnabar.BulkHandle) (none, error) {
		memory := make([]byte, 6)
		local, err := e.Expose(cinnabar.WriteOnly, memory)
		if err != nil {
			return none{}, err
		}
		defer local.Close() // the pull has ended
		if _, err = in.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local); err == nil && string(memory) != "Matthi" {
			err = fmt.Errorf("pulled %q", memory)
		}
		return none{}, err
	}))
}

func serveTutorialProvider(t *testing.T, e *cinnabar.Engine) {
	t.Helper()
	p, err := e.NewProvider(22, "")
	must(t, err, tlSum.Handle(p, sumNumbers),
		cinnabar.NewRPC[numbers, int32]("prod", inThallium).Handle(p, sumNumbers), // the tutorial adds
		tlHello.Handle(p, func(context.Context, string) error { return nil }),
		cinnabar.NewOneWay[string]("print", inThallium).Handle(p, func(context.Context, string) error { return nil }))
}

// serveTutorialContext answers as a server in C++ does whose serialization context is (3, 2, 1) and 3.5: it reads into temporary
// values, so that it adds two points of zeros.
func serveTutorialContext(t *testing.T, e *cinnabar.Engine) {
	t.Helper()
	must(t, cinnabar.NewRPC[[2]point, point]("process", inThallium).Handle(e, func(context.Context, [2]point) (point, error) {
		return point{3 * 3.5, 2 * 3.5, 1 * 3.5}, nil
	}))
}

// TestReplayThalliumTutorials plays what the clients of Thallium's tutorials have sent to a server in Go, which must answer as
// the tutorials' servers did.
// parity(recorded): H47 H77 T06 T21 T24
func TestReplayThalliumTutorials(t *testing.T) {
	apart(t)
	for _, c := range callers {
		t.Run(c.name, func(t *testing.T) { replay(t, listenTutorial(t, &c).Addr(), conversation(t, c.name)) })
	}
}

// TestReplayTutorialsWithChecksums does the same with clients of both tutorials whose Mercury computes checksums.
// parity(recorded): H47 H77 T06 T21 T24
func TestReplayTutorialsWithChecksums(t *testing.T) {
	apart(t)
	for _, c := range slices.Concat(margoCallers, callers) {
		t.Run(c.name, func(t *testing.T) {
			ms := conversation(t, c.name+"_crc")
			if !slices.ContainsFunc(ms, func(m message) bool { return asksWithChecksums(m.fromDialer, m.bytes) }) {
				t.Error("the recorded client computes no checksums")
			}
			replay(t, listenTutorial(t, &c).Addr(), ms)
		})
	}
}

// asksWithChecksums reports whether a message is a request with checksums.
func asksWithChecksums(fromDialer bool, b []byte) bool {
	if !fromDialer || len(b) <= cmSize || b[1] != opMessage || b[2]&flagCQData == 0 {
		return false
	}
	core := int(b[6]) + addressSize
	return len(b) > core+requestFlags && b[core+requestFlags]&flagChecksums != 0
}

func listenTutorial(t *testing.T, c *caller) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), network, nil)
	must(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	c.serve(t, e)
	return e
}

// TestClientsOfTutorials has the clients themselves call a server in Go. With -record it has them call the tutorials' servers,
// and writes the recordings anew.
// parity(peer): H47 T06 T21 T24
func TestClientsOfTutorials(t *testing.T) {
	installedProgram(t, callers[0].client)
	for _, c := range slices.Concat(margoCallers, callers) {
		t.Run(c.name, func(t *testing.T) {
			client := installedProgram(t, c.client)
			if *recordFlag {
				c.record(t, client)
				return
			}
			c.call(t, client, listenTutorial(t, &c).Addr())
		})
	}
}

// call runs the client to its end.
func (c *caller) call(t *testing.T, client, addr string) {
	t.Helper()
	p := startFile(t, client, append([]string{addr}, c.arguments...)...)
	if err := p.Wait(); err != nil {
		t.Errorf("%s ends with %v\n%s", c.client, err, p.log())
	}
}

// TestAnsweredRDMA runs the newer form of the tutorial on RDMA, in which the server answers, with either half in Go.
// parity(peer): T20 T27
func TestAnsweredRDMA(t *testing.T) {
	server, client := installedProgram(t, "08_tl_server"), installedProgram(t, "07_rdma_client") // before anything else is built
	t.Run("C++ server, Go client", func(t *testing.T) {
		host := startFile(t, server)
		c := startFile(t, goProgram(t, "examples/do_rdma/client"), "-answer", host.listensAt())
		if err := c.Wait(); err != nil {
			t.Errorf("the client ends with %v\n%s", err, c.log())
		}
	})
	t.Run("Go server, C++ client", func(t *testing.T) {
		host := startExampleServer(t, goProgram(t, "examples/do_rdma/server"))
		c := startFile(t, client, host.addr)
		if got := host.expect("Server"); got != matthi {
			t.Errorf("the server prints %q; want %q", got, matthi)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("the client ends with %v\n%s", err, c.log())
		}
		host.end()
		if err := host.Wait(); err != nil {
			t.Errorf("the server ends with %v\n%s", err, host.log())
		}
	})
}

func (c *caller) record(t *testing.T, client string) {
	t.Helper()
	server := startFile(t, installedProgram(t, c.server))
	to := strings.TrimPrefix(server.listensAt(), scheme)
	r, err := recording.NewRelay("127.0.0.1:0", to)
	must(t, err)
	c.call(t, client, scheme+r.Addr())
	server.Kill()
	conns, err := r.Close()
	must(t, err)
	if len(conns) != 1 || len(conns[0][0].Bytes) != cmSize {
		t.Fatalf("%d connections, want 1", len(conns))
	}
	const offPort = 34
	port := uint16(conns[0][0].Bytes[offPort])<<8 | uint16(conns[0][0].Bytes[offPort+1])
	listener := netip.MustParseAddrPort(to)
	kind, name := "without", c.name
	if slices.ContainsFunc(conns[0], func(m recording.Raw) bool { return asksWithChecksums(m.FromDialer, m.Bytes) }) {
		kind, name = "with", c.name+"_crc"
	}
	rec := recording.Recording{
		Comments: []string{
			fmt.Sprintf("provenance: relayed on loopback between two processes of Thallium 0.16.0 or Margo 0.24.0, Mercury 2.4.1 %s checksums, libfabric 2.7.0a1 tcp, x86-64 Linux", kind),
			fmt.Sprintf("server: %s of the tutorials; client: %s", c.server, strings.Join(append([]string{c.client}, c.arguments...), " ")),
		},
		Conversations: []recording.Conversation{recording.Plain(conns[0], netip.AddrPortFrom(listener.Addr(), port), listener)},
	}
	must(t, os.WriteFile(filepath.Join("testdata", "wire", name+".hex"), rec.Append(nil), 0o644))
}
