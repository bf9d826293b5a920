// Command 10 is the tenth tutorial, logging: an engine and its program log lines in Margo's format, or through any slog.Handler, at
// levels of Margo's that the program sets.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"cinnabar"
	"cinnabar/margo"
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

// speak opens an engine that logs to next at a level of Margo's, and logs lines of the program beside those of the engine.
func speak(ctx context.Context, next slog.Handler, level string) error {
	handler, err := margo.NewLogHandler(next, margo.LogLevels{Margo: level})
	if err != nil {
		return err
	}
	logger := slog.New(handler)
	engine, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", &cinnabar.Config{Logger: logger})
	if err != nil {
		return err
	}
	defer engine.Close()
	logger.DebugContext(ctx, fmt.Sprintf("Got response: %d", 36))
	logger.InfoContext(ctx, "Client is done")
	if err := handler.SetLevels(margo.LogLevels{Margo: "critical"}); err != nil { // levels may change at any time
		return err
	}
	logger.ErrorContext(ctx, "This line is below the new level")
	logger.Log(ctx, margo.LevelCritical, "This line is printed at every level")
	return nil
}

func run(ctx context.Context) error {
	for _, level := range []string{"info", "debug"} {
		fmt.Println("at level", level+":")
		if err := speak(ctx, margo.NewLineHandler(os.Stdout), level); err != nil {
			return err
		}
	}
	fmt.Println("by another handler:")
	return speak(ctx, withoutTime(), "info")
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
