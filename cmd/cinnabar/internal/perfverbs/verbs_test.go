package perfverbs

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
)

func TestOptions(t *testing.T) {
	for args, want := range map[string]string{
		"--op fly":                      "one of write, write-imm, read, send, atomic",
		"--latency --bandwidth":         "one is measured at a time",
		"--depth 0":                     "--depth 0",
		"--depth 99999":                 "--depth 99999",
		"--depth 4 --signal-every 5":    "--signal-every 5",
		"--count -1":                    "--count -1",
		"--duration 0s":                 "measures nothing",
		"--timeout 0s":                  "--timeout",
		"--size 2,1":                    "--size",
		"--size 0":                      "--size",
		"--op atomic --size 16":         "an atomic has 8 bytes",
		"--latency --op write --events": "raises no event",
		"localhost --once":              "for servers",
		"localhost --listen :1":         "for servers",
		"a b":                           "usage: cinnabar perf verbs",
		"--size " + strings.Repeat("1,", 200) + "1": "too many sizes",
	} {
		clitest.WantRun(t, cli.ExitUsage, append([]string{"perf", "verbs"}, strings.Fields(args)...), want)
	}
	clitest.WantRun(t, cli.ExitFailure, []string{"perf", "verbs", "--device", "nope"}, "device 'nope' wasn't found; there is "+cli.SoftwareDevice)
	clitest.WantRun(t, cli.ExitFailure, []string{"perf", "verbs", "127.0.0.1:1", "--timeout", "5s"}, "is a cinnabar perf verbs server running there?")
}

func TestServerAddr(t *testing.T) {
	for text, want := range map[string]string{
		"host": "host:18515", "host:1": "host:1", "::1": "[::1]:18515", "[::1]": "[::1]:18515", "[::1]:2": "[::1]:2",
	} {
		if got := serverAddr(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// pair is a client and a server of perf verbs in this process, on the software device. Nobody polls.
type pair struct{ client, server *side }

// newPair connects the two and prepares them for the first size. The test closes them.
func newPair(t *testing.T, o *options) *pair {
	t.Helper()
	dev, err := cli.OpenDevice(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	a, b := clitest.TCPPair(t)
	p := &pair{client: newEnd(t, dev, o), server: newEnd(t, dev, o)}
	errA, errB := clitest.Both(
		func() error { _, err := p.client.meet(t.Context(), a, true); return err },
		func() error { _, err := p.server.meet(t.Context(), b, false); return err })
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	for end, c := range map[*side]net.Conn{p.client: a, p.server: b} {
		end.control, _ = openControl(context.Background(), link.NewExchange(c), time.Minute)
		end.load(o.sizes[0])
	}
	t.Cleanup(func() {
		p.client.control.close()
		p.server.control.close()
		bg := context.Background()
		if err := errors.Join(p.client.Close(bg), p.server.Close(bg), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func newEnd(t *testing.T, dev *verbs.Device, o *options) *side {
	t.Helper()
	e, err := newSide(dev, o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A server without --listen serves no other machine.
func TestListensOnLoopback(t *testing.T) {
	for listen, want := range map[string]string{
		New(cli.Streams{}).Flag("listen").DefValue: "127.0.0.1:" + defaultPort, ":7": "127.0.0.1:7", "[::]:7": "[::]:7",
		"": "127.0.0.1:" + defaultPort, "h:7": "h:7", "192.0.2.1": "192.0.2.1:" + defaultPort, "::1": "[::1]:" + defaultPort,
	} {
		if got := listenAddr(listen); got != want {
			t.Errorf("perf verbs --listen %s: %s, want %s", listen, got, want)
		}
	}
}
