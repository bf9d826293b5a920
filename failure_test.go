package cinnabar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/audit"
)

// TestHandlerErrorIsLogged checks that the text of a handler's error is in the server's log, since the caller gets a code.
func TestHandlerErrorIsLogged(t *testing.T) {
	audit.Reset()
	var w logLines
	server, ep := pair(t, &Config{Logger: w.logger()})
	fails := errors.New("disk /dev/sdb3 is full")
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) { return addOut{}, fails }))
	_, err := add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.OtherError, "its log has the text")
	w.Want(t, 0, "handler fails", "rpc=add", "peer=", fails.Error())
	must(t, add.Remove(server))
	must(t, add.HandleCall(server, func(c *Call[addIn, addOut]) { _ = c.Fail(fails) }))
	_, err = add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.OtherError)
	w.Want(t, 1, "handler fails", fails.Error())
	must(t, add.Remove(server))
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) {
		return addOut{}, fmt.Errorf("key 7: %w", codes.NoEntry)
	}))
	_, err = add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.NoEntry)
	w.End(t, 2) // an error with a code is an answer
	must(t, add.Remove(server))
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) { return addOut{}, fails }))
	for range 3 * audit.LinesPerHost {
		_, _ = add.Call(patient(t), ep, addIn{})
	}
	if n := len(w.Lines()); n > audit.LinesPerHost+1 {
		t.Errorf("%d lines about one host", n)
	}
}

// TestPanicWithoutLogger checks that a panic is printed on standard error by an engine that has no logger.
func TestPanicWithoutLogger(t *testing.T) {
	panics.Reset()
	r, w, err := os.Pipe()
	must(t, err)
	old := os.Stderr
	os.Stderr = w
	func() {
		defer func() { os.Stderr = old }()
		server, ep := pair(t, nil)
		must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) { panic("no disk\ncinnabar: all is well") }))
		_, err = add.Call(patient(t), ep, addIn{})
		wantCode(t, err, codes.OtherError)
		must(t, server.Close())
	}()
	must(t, w.Close())
	out, err := io.ReadAll(r)
	must(t, err)
	for _, want := range []string{"handler panics", "rpc add", "no disk", "failure_test.go"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("standard error lacks %q: %s", want, out)
		}
	}
	if strings.Contains(string(out), "\ncinnabar: all") {
		t.Errorf("a line of the panic's value looks like one of its own: %s", out)
	}
}

// TestPanicsDoNotFloodTheLog makes a peer's requests panic again and again: the lines about them are bounded, and the first
// are there although other lines about the host have used their bound up.
func TestPanicsDoNotFloodTheLog(t *testing.T) {
	audit.Reset()
	panics.Reset()
	var w logLines
	server, ep := pair(t, &Config{Logger: w.logger()})
	must(t, add.Handle(server, func(_ context.Context, in addIn) (addOut, error) {
		if in.X == 0 {
			return addOut{}, errors.New("disk is full")
		}
		panic("index out of range")
	}))
	for i := range 6 * audit.LinesPerHost {
		_, err := add.Call(patient(t), ep, addIn{X: int32(i / (2 * audit.LinesPerHost))})
		wantCode(t, err, codes.OtherError)
	}
	var n int
	for _, line := range w.Lines() {
		if strings.Contains(line, "handler panics") {
			n++
		}
	}
	if n != audit.LinesPerHost {
		t.Errorf("%d lines about panics that one host provokes, want %d", n, audit.LinesPerHost)
	}
}

// TestLongTextsAreShortened checks that a peer's arguments in an error or in a panic do not fill the log.
func TestLongTextsAreShortened(t *testing.T) {
	audit.Reset()
	panics.Reset()
	var w logLines
	server, ep := pair(t, &Config{Logger: w.logger()})
	open := NewRPC[string, struct{}]("open")
	must(t, open.Handle(server, func(_ context.Context, name string) (struct{}, error) {
		if strings.HasPrefix(name, "!") {
			panic(name)
		}
		return struct{}{}, errors.New("no file " + name)
	}))
	for i, first := range []string{"?", "!"} {
		_, err := open.Call(patient(t), ep, first+strings.Repeat("x", 1<<20))
		wantCode(t, err, codes.OtherError)
		w.Want(t, i, "rpc=open", "xxx", "bytes)")
	}
	if n := len(strings.Join(w.Lines(), "")); n > 1<<16 {
		t.Errorf("two lines have %d bytes", n)
	}
}

// TestWrongTypeIsLogged checks what both sides say when their types differ.
func TestWrongTypeIsLogged(t *testing.T) {
	audit.Reset()
	var w logLines
	server, ep := pair(t, &Config{Logger: w.logger()})
	must(t, add.Handle(server, handleAdd))
	short := NewRPC[struct{ X int32 }, addOut]("add")
	_, err := short.Call(patient(t), ep, struct{ X int32 }{})
	wantCode(t, err, codes.Overflow, "compare the types of both sides")
	w.Want(t, 0, "arguments cannot be decoded", "rpc=add", "addIn: Y")
	must(t, add.Remove(server))
	must(t, short.Handle(server, func(context.Context, struct{ X int32 }) (addOut, error) { return addOut{}, nil }))
	long := NewRPC[addIn, struct{ A, B int64 }]("add")
	_, err = long.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.Overflow, "decode")
}

// stubborn is a type that refuses to be encoded.
type stubborn struct{ err error }

func (s stubborn) AppendProc([]byte) ([]byte, error)   { return nil, s.err }
func (*stubborn) DecodeProc([]byte) (n int, err error) { return 0, nil }

// TestEncodingFaultIsTheCallers checks that values which cannot be encoded are a fault of this process.
func TestEncodingFaultIsTheCallers(t *testing.T) {
	audit.Reset()
	var w logLines
	server, ep := pair(t, &Config{Logger: w.logger()})
	rpc := NewRPC[stubborn, struct{}]("stubborn")
	for _, err := range []error{errors.New("no"), codes.Overflow} {
		_, got := rpc.Call(patient(t), ep, stubborn{err})
		wantCode(t, got, codes.InvalidArg, err.Error())
		_, got = rpc.Start(patient(t), ep, stubborn{err}).Wait()
		wantCode(t, got, codes.InvalidArg, err.Error())
	}
	answer := NewRPC[struct{}, stubborn]("answer")
	must(t, answer.Handle(server, func(context.Context, struct{}) (stubborn, error) { return stubborn{codes.Overflow}, nil }))
	_, err := answer.Call(patient(t), ep, struct{}{})
	wantCode(t, err, codes.OtherError)
	w.Want(t, 0, "result cannot be encoded", "rpc=answer")
}

// TestShutdownHint checks the error of a caller whose server is shutting down.
func TestShutdownHint(t *testing.T) {
	server, ep := pair(t, nil)
	running, goOn := make(chan struct{}), make(chan struct{})
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) {
		close(running)
		<-goOn
		return addOut{}, nil
	}))
	p := add.Start(patient(t), ep, addIn{})
	soon(t, "the handler", running)
	down := make(chan error, 1)
	go func() { down <- server.Shutdown(patient(t)) }()
	waitFor(t, func() bool {
		_, err := echoRPC.Call(patient(t), ep, struct{}{})
		return codes.Of(err) == codes.NoEntry && server.handlers.gate.Closed()
	})
	_, err := add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.Permission, "it is shutting down")
	close(goOn)
	_, err = p.Wait()
	must(t, err)
	must(t, soon(t, "the shutdown", down))
}

var echoRPC = NewRPC[struct{}, struct{}]("nobody serves this")

// TestTimeOutSaysWhy checks that a call whose time is over says what it was waiting for.
//
// The errors of calls that were begun by Start say the same.
func TestTimeOutSaysWhy(t *testing.T) {
	soonOver := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), 300*time.Millisecond)
	}
	check := func(t *testing.T, ep Target, texts ...string) {
		t.Helper()
		ctx, cancel := soonOver()
		defer cancel()
		_, err := block.Call(ctx, ep, struct{}{})
		wantCode(t, err, codes.Timeout, texts...)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not the context's error", err)
		}
		ctx, cancel = soonOver()
		defer cancel()
		_, err = block.Start(ctx, ep, struct{}{}).Wait()
		wantCode(t, err, codes.Timeout, texts...)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not the context's error", err)
		}
	}
	t.Run("answer", func(t *testing.T) {
		server, ep := pair(t, nil)
		must(t, block.Handle(server, handleBlock))
		check(t, ep, "request sent 0.", "s ago, no answer")
	})
	t.Run("refused", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		must(t, l.Close())
		client := overTCP(t, &Config{DialRetry: time.Minute})
		check(t, find(t, client, "ofi+tcp://"+l.Addr().String()), "request not sent: connecting: failed ", "connection refused")
	})
	t.Run("silent", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0") // which the kernel accepts for
		must(t, err)
		defer func() { _ = l.Close() }()
		client := overTCP(t, nil)
		check(t, find(t, client, "ofi+tcp://"+l.Addr().String()), "waiting for the answer to the connection request")
	})
}

// TestTextsInLogs checks what values of this package look like in the lines of slog's handlers, and as JSON.
func TestTextsInLogs(t *testing.T) {
	e := listening(t, nil)
	ep := reach(t, e, e)
	b, err := e.Expose(ReadOnly, make([]byte, 7))
	must(t, err)
	defer func() { _ = b.Close() }()
	failure := &Error{Op: "call", Code: codes.Again}
	for name, v := range map[string]any{
		failure.Error():     failure,
		ep.String():         ep,
		ep.String() + "@3":  ep.Provider(3),
		"null bulk":         BulkHandle{},
		b.Handle().String(): b.Handle(),
		"no address":        (*Endpoint)(nil),
	} {
		var text, lines bytes.Buffer
		slog.New(slog.NewTextHandler(&text, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&lines, nil)).Info("x", "v", v)
		want, err := json.Marshal(name)
		must(t, err)
		inJSON := string(want)
		switch v {
		case (*Endpoint)(nil):
			inJSON = "null" // as of all pointers that are nil
		case ep.Provider(3):
			inJSON = fmt.Sprintf(`{"Endpoint":%q,"ID":3}`, ep)
		}
		if !strings.Contains(lines.String(), `"v":`+inJSON) {
			t.Errorf("JSON handler: %s, want %s", lines.String(), inJSON)
		}
		if !strings.Contains(text.String(), "v="+name) && !strings.Contains(text.String(), "v="+string(want)) {
			t.Errorf("text handler: %s, want %s", text.String(), name)
		}
		if v == failure {
			continue // its JSON is that of the fields
		}
		if got, err := json.Marshal(v); err != nil || string(got) != inJSON {
			t.Errorf("JSON of %T is %s, %v, want %s", v, got, err, inJSON)
		}
	}
}
