//go:build linux

package interop

import (
	"net/netip"
	"strings"
	"testing"

	"cinnabar"
	margoface "cinnabar/margo"
)

// TestMargoConfig gives C's margo_init_ext configurations that are written here: it starts, without a warning, and
// serves. They have a thread for progress, since the main one of margo_peer waits for commands.
// parity(peer): G80
func TestMargoConfig(t *testing.T) {
	margoPeer.executable(t)
	const progress = `"use_progress_thread":true`
	for name, tc := range map[string]struct {
		document string
		change   func(*margoface.Config)
	}{
		"threads": {`{` + progress + `,"rpc_thread_count":3}`, func(*margoface.Config) {}},
		"shared":  {`{` + progress + `,"rpc_thread_count":-1}`, func(*margoface.Config) {}},
		"pools": {`{` + progress + `}`, func(c *margoface.Config) {
			c.Pools = append(c.Pools, cinnabar.PoolConfig{Name: "disk", Workers: 2}, cinnabar.PoolConfig{Name: "rpcs", Kind: cinnabar.PoolPriority})
			c.RPCPool = "rpcs"
		}},
		"mercury": {`{` + progress + `,"rpc_thread_count":1}`, func(c *margoface.Config) {
			c.NoEager, c.NoLoopback, c.Subnet = true, true, netip.MustParsePrefix("127.0.0.0/8")
			c.Log = margoface.LogLevels{Mercury: "error", Subsystems: "hg,~rpc"}
			c.MaxHandlers, c.AllowQuery = 7, true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := margoface.ParseConfig([]byte(tc.document))
			if err != nil {
				t.Fatal(err)
			}
			tc.change(cfg)
			document, err := margoface.FormatConfig(cfg, margoface.ConfigFormat{UseNames: name == "pools"})
			if err != nil {
				t.Fatal(err)
			}
			q := startPeer(t, margoPeer, "--config", string(document))
			c := dial(t, margo, q.addr, nil)
			if out, err := c.rpc.sum.Call(c.ctx(), c.to, sumIn{40, 2}); err != nil || out.Ret != 42 {
				t.Errorf("sum is %d, %v; want 42", out.Ret, err)
			}
			for l := range strings.Lines(q.log()) { // Mercury's begin with #
				if l = strings.TrimSpace(l); strings.HasPrefix(l, "[warning]") || strings.HasPrefix(l, "[error]") {
					t.Errorf("C says %q to %s", l, document)
				}
			}
			q.stop()
		})
	}
}
