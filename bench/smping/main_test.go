//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"cinnabar/bench/internal/benchtest"
)

// A server and its client in this process: the client prints one line of figures that agree with each other.
func TestServeAndPing(t *testing.T) {
	address := benchtest.Serve(t, func(args []string, in io.Reader, out io.Writer) error {
		return run(context.WithoutCancel(t.Context()), args, in, out) // the test's end ends the input, not the context
	})
	for _, size := range []string{"0", "4096"} {
		var result bytes.Buffer
		if err := run(t.Context(), []string{"ping", address, "-size", size, "-duration", "1ms"}, nil, &result); err != nil {
			t.Error(err)
		}
		var l line
		if err := json.Unmarshal(result.Bytes(), &l); err != nil || l.Count < batch || l.RoundTrip <= 0 || l.UsecPerCall != l.RoundTrip/2 {
			t.Errorf("printed %q (%v)", result.String(), err)
		}
	}
}

func TestMisuse(t *testing.T) {
	for _, args := range []string{"", "ping", "serve more", "ping nowhere", "ping na+sm://1-0 -size 4097", "ping na+sm://1-0 -size -1", "ping na+sm://1-0 -x"} {
		if err := run(t.Context(), strings.Fields(args), strings.NewReader(""), io.Discard); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
