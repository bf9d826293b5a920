package cinnabar

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// note logs msg about peer at Warn, within the limit on lines for each host (package audit).
func (e *Engine) note(peer na.Addr, msg string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !e.log.Enabled(ctx, slog.LevelWarn) {
		return
	}
	suppressed, ok := audit.Allow(peer.Account().Host())
	if !ok {
		return
	}
	attrs = append([]slog.Attr{slog.String(logPeer, peer.String())}, attrs...)
	if suppressed > 0 {
		attrs = append(attrs, slog.Uint64("suppressed", suppressed))
	}
	e.log.LogAttrs(ctx, slog.LevelWarn, msg, attrs...)
}

// maxLogged limits the text of an error or a panic in bytes, because it may contain arguments of a peer: a handler's error names the
// file that it does not find, and the name has a gigabyte.
const maxLogged = 4096

// logged is an error of the program, or the value of a panic, in a log line.
type logged struct{ value any }

// LogValue implements [slog.LogValuer].
func (l logged) LogValue() slog.Value {
	if text := fmt.Sprint(l.value); len(text) > maxLogged {
		return slog.StringValue(shortened(text))
	}
	return slog.AnyValue(l.value)
}

// shortened returns the first bytes of a text that is longer than maxLogged, with its length.
func shortened(text string) string {
	if len(text) <= maxLogged {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:maxLogged], ""), len(text))
}

// panics limits the lines about panics for each caller's host. It is a limit of its own, because other lines about the host could
// otherwise suppress the first panic.
var panics = audit.NewLimiter()

// panicked logs a panic in the program's handler or timer. Without a logger it prints the panic on standard error, as package
// net/http does. peer is the caller of the handler, and nil for a timer.
func (e *Engine) panicked(msg, rpc string, peer na.Addr, value any, stack []byte) {
	from, host := "none", hostquota.Host{}
	if peer != nil {
		from, host = peer.String(), peer.Account().Host()
	}
	suppressed, ok := panics.Allow(host)
	if !ok {
		return
	}
	if e.unlogged {
		text := strings.ReplaceAll(shortened(fmt.Sprint(value)), "\n", "\n\t") // indented, so that a line of value cannot pass for a log line
		if suppressed > 0 {
			text += fmt.Sprintf(" (and %d more panics)", suppressed)
		}
		_, _ = fmt.Fprintf(os.Stderr, "cinnabar: %s (rpc %s, peer %s): %s\n%s", msg, rpc, from, text, stack) // there is nowhere else to report a failure
		return
	}
	attrs := []any{logRPC, rpc, logPeer, from, "panic", logged{value}, "stack", string(stack)}
	if suppressed > 0 {
		attrs = append(attrs, "suppressed", suppressed)
	}
	e.log.Error(msg, attrs...)
}
