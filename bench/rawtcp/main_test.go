package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"

	"cinnabar/bench/internal/benchtest"
)

// A server and its clients in this process: each prints one line of figures that agree with each other.
func TestServeAndMeasure(t *testing.T) {
	address := benchtest.Serve(t, run)
	nonsense(t, address)
	for _, op := range []string{"pull", "push"} {
		var result bytes.Buffer
		if err := run([]string{op, address, "-size", "70000", "-duration", "20ms"}, nil, &result); err != nil {
			t.Error(err)
		}
		var l line
		if err := json.Unmarshal(result.Bytes(), &l); err != nil || l.Op != op || l.Size != 70000 || l.Count == 0 || l.MiBPerSecond <= 0 || l.P99Usec < l.P50Usec {
			t.Errorf("%s printed %q (%v)", op, result.String(), err)
		}
		if product := l.UsecPerCall * l.CallsPerSecond; product < 0.99e6 || product > 1.01e6 || float64(l.Count)*l.UsecPerCall < 19.9e3 {
			t.Errorf("%s printed %q", op, result.String())
		}
	}
}

// nonsense sends a request that the server does not serve, which ends that connection only.
func nonsense(t *testing.T, address string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte{0, 0, 0, 0, 0, 0, 0, 0x80}); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a request for the smallest number of bytes: %d bytes, %v, want the connection's end", n, err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"nonsense"}, {"pull"}, {"pull", "x", "-size", "0"}, {"push", "x", "-size", "1073741825"}} {
		if err := run(args, nil, io.Discard); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
