package cli

import (
	"context"
	"os"
	"testing"
)

func TestExitCodeOfSignal(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(SignalError{os.Interrupt})
	if got := ExitCode(ctx, context.Cause(ctx)); got != 130 {
		t.Errorf("exit code %d after an interrupt, want 130", got)
	}
	if got := ExitCode(ctx, nil); got != 0 {
		t.Errorf("exit code %d for a command that succeeded all the same, want 0", got)
	}
}
