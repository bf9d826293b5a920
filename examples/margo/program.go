package margo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"cinnabar"
	"cinnabar/margo"
)

// Patience is for how long a server that is interrupted waits for the calls under way, and a client for an answer that it
// sets no limit of its own.
const Patience = 30 * time.Second

// Main is a program and returns its exit code. run gets a context that ends with an interrupt; its error is printed.
func Main(run func(ctx context.Context, stdout io.Writer) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second ^C ends the process at once
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// Open makes an engine that speaks the protocol of address, with the settings in Margo's environment variables.
func Open(address string) (*cinnabar.Engine, error) {
	cfg, err := margo.ConfigFromEnv(nil)
	if err != nil {
		return nil, err
	}
	protocol, _, _ := strings.Cut(address, "://")
	return margo.Open(context.Background(), protocol, cfg)
}

// Wait announces a server and waits until a peer has ended it, or ctx ends.
func Wait(ctx context.Context, engine *cinnabar.Engine, stdout io.Writer) error {
	if _, err := fmt.Fprintln(stdout, "accepting calls at", engine.Addr()); err != nil {
		return err
	}
	select {
	case <-engine.Done():
		return engine.Shutdown(ctx)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), Patience)
	defer cancel()
	return engine.Shutdown(drain)
}
