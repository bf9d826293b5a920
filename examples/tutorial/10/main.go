// Command 10 is the tenth tutorial, logging: an engine logs lines in Margo's format, or through any slog.Handler, at levels that the
// program sets for all engines or for one.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"cinnabar"
)

// withoutTime returns a handler of log/slog that leaves out the time, because the time differs from run to run.
func withoutTime() slog.Handler {
	return slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}

// speak logs three lines through an engine at the given level.
func speak(ctx context.Context, logger *slog.Logger, level slog.Level) error {
	engine, err := cinnabar.Open("ofi+tcp://127.0.0.1", &cinnabar.Config{Logger: logger})
	if err != nil {
		return err
	}
	defer engine.Close()
	engine.SetLogLevel(level)
	engine.Log().DebugContext(ctx, fmt.Sprintf("Got response: %d", 36))
	engine.Log().InfoContext(ctx, "Client is done")
	engine.Log().Log(ctx, cinnabar.LevelCritical, "This line is printed at every level")
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	// A logger of NewLogger has the global level as long as it belongs to no engine. Each engine has a level of its own.
	cinnabar.SetLogLevel(slog.LevelInfo)
	lines := cinnabar.NewLogger(os.Stdout)
	lines.InfoContext(ctx, "This line is at the global level")
	lines.DebugContext(ctx, "This line is below it")

	fmt.Println("at level info:")
	if err := speak(ctx, lines, slog.LevelInfo); err != nil {
		return err
	}
	fmt.Println("at level debug:")
	if err := speak(ctx, lines, slog.LevelDebug); err != nil {
		return err
	}
	fmt.Println("by another logger:")
	return speak(ctx, slog.New(withoutTime()), slog.LevelInfo)
}
