//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// A server and its client in this process: the client prints one line of figures that agree with each other.
func TestServeAndPing(t *testing.T) {
	in, end := io.Pipe()
	addr, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(t.Context(), []string{"serve"}, in, out) }()
	text := make([]byte, 64)
	n, err := addr.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(string(text[:n]))
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
	_ = end.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMisuse(t *testing.T) {
	for _, args := range []string{"", "ping", "serve more", "ping nowhere", "ping na+sm://1-0 -size 4097", "ping na+sm://1-0 -size -1", "ping na+sm://1-0 -x"} {
		if err := run(t.Context(), strings.Fields(args), strings.NewReader(""), io.Discard); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
