package filetransfer

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a program and returns the exit code of run. The context of run ends with an interrupt; a second one ends the
// process at once.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	defer stop()
	return run(ctx, os.Args, os.Stdout, os.Stderr)
}
