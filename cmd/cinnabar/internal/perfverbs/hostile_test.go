package perfverbs

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/link"
)

// What a client may say that is no part of the conversation ends it, with a reason, and costs no memory.
// parity: V78
func TestHostileClient(t *testing.T) {
	for name, tt := range map[string]struct{ says, want string }{
		"no JSON":          {"size=64\n", "not understood"},
		"no object":        {"[[[[]]]]\n", "not understood"},
		"a long line":      {strings.Repeat("x", 2*link.ExchangeLimit), "over 4096 bytes"},
		"a size of no one": {`{"word":"begin","size":9223372036854775807}` + "\n", "not its turn"},
		"a negative size":  {`{"word":"begin","size":-64}` + "\n", "not its turn"},
		"no turn":          {`{"word":"done","size":64}` + "\n", "not its turn"},
		"an unknown word":  {`{"word":"` + strings.Repeat("z", 1000) + `"}` + "\n", "not its turn"},
		"a failure":        {`{"word":"failed","reason":"no room"}` + "\n", "the other side failed: no room"},
		"nothing":          {"", "ended before it was done"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer cli.Shut(ours)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			control, ctx := openControl(ctx, link.NewExchange(ours), time.Minute)
			defer control.close()
			go func() {
				_, _ = theirs.Write([]byte(tt.says)) // the other end may hang up
				if tt.says == "" {
					cli.Shut(theirs)
				}
			}()
			e := &side{o: &options{sizes: []int64{64}}, control: control}
			clitest.WantError(t, e.serve(ctx), tt.want)
		})
	}
}
