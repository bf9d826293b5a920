package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// A server and a client that run in this process: one line of plausible figures.
func TestServeAndRate(t *testing.T) {
	in, end := io.Pipe()
	addr, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run([]string{"serve"}, in, out) }()
	text := make([]byte, 64)
	n, err := addr.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	var result bytes.Buffer
	if err := run([]string{"rate", strings.TrimSpace(string(text[:n])), "-duration", "20ms", "-inflight", "4"}, nil, &result); err != nil {
		t.Error(err)
	}
	var l line
	if err := json.Unmarshal(result.Bytes(), &l); err != nil || l.Count == 0 || l.Inflight != 4 || l.Size != 64 {
		t.Errorf("rate printed %q (%v)", result.String(), err)
	}
	_ = end.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	if err := run([]string{"nonsense"}, nil, io.Discard); err == nil {
		t.Error("an unknown command was accepted")
	}
}
