package cinnabar_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"cinnabar"
)

// handlerOf is a logger of somebody else's, as any slog.Handler is.
func handlerOf() slog.Handler {
	return slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{} // times differ from run to run
		}
		return a
	}})
}

// speak has an engine log as the program and the engine's level say.
func speak(logger *slog.Logger, level slog.Level) error {
	engine, err := cinnabar.Open("ofi+tcp://127.0.0.1", &cinnabar.Config{Logger: logger})
	if err != nil {
		return err
	}
	defer engine.Close()
	engine.SetLogLevel(level)
	engine.Log().Debug(fmt.Sprintf("Got response: %d", 36))
	engine.Log().Info("Client is done")
	engine.Log().Log(context.Background(), cinnabar.LevelCritical, "This is always heard")
	return nil
}

// Tutorial 10, logging: the loggers are those of log/slog. [cinnabar.NewLogger] makes one that writes lines as Margo does.
// Its level is global as long as it belongs to no engine; each engine has a level of its own.
// parity: G85 G96
func Example_tutorial10() {
	defer cinnabar.SetLogLevel(slog.LevelWarn)
	cinnabar.SetLogLevel(slog.LevelInfo)
	lines := cinnabar.NewLogger(os.Stdout)
	lines.Info("This line is at the global level")
	lines.Debug("This line is below it")

	fmt.Println("at level info:")
	if err := speak(lines, slog.LevelInfo); err != nil {
		log.Fatal(err)
	}
	fmt.Println("at level debug:")
	if err := speak(lines, slog.LevelDebug); err != nil {
		log.Fatal(err)
	}
	fmt.Println("by another logger:")
	if err := speak(slog.New(handlerOf()), slog.LevelInfo); err != nil {
		log.Fatal(err)
	}
	// Output:
	// [info] This line is at the global level
	// at level info:
	// [info] Client is done
	// [critical] This is always heard
	// at level debug:
	// [debug] Got response: 36
	// [info] Client is done
	// [critical] This is always heard
	// by another logger:
	// level=INFO msg="Client is done"
	// level=ERROR+4 msg="This is always heard"
}
