package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun runs two servers and a client.
// parity: A06
func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	args := []string{"call"}
	for range 2 {
		r, w := io.Pipe()
		go func() { ended <- run(ctx, w, []string{"serve", "ofi+tcp://127.0.0.1"}) }()
		addr, err := bufio.NewReader(r).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, strings.TrimSpace(addr))
	}
	var out bytes.Buffer
	if err := run(ctx, &out, args); err != nil || out.String() != "the price is 9\nthe price is 9\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := run(ctx, &out, nil); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("without arguments: %v", err)
	}
}

// TestPage checks that docs/native.md has the program as it is.
func TestPage(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/native.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```go\n"+string(program)+"```\n") {
		t.Error("docs/native.md has another program than main.go")
	}
}
