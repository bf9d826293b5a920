// Command stream counts words with a stream of package native: the client sends lines, and the server sends each word of them back when it comes
// for the first time.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"cinnabar"
	"cinnabar/native"
)

// Word is a word and the line that it came in.
type Word struct {
	Text string
	Line uint32
}

// Words is the stream, for both sides.
var Words = native.NewStream[string, Word]("words")

func main() {
	if err := run(os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve is the handler of one stream.
func serve(ctx context.Context, s *native.ServerStream[string, Word]) error {
	seen, line := map[string]bool{}, uint32(0)
	for text, err := range s.Receive(ctx) {
		if err != nil {
			return err // the client has cancelled, is gone, or has no time left
		}
		line++
		for word := range strings.FieldsSeq(text) {
			if seen[word] {
				continue
			}
			seen[word] = true
			if err := s.Send(ctx, Word{word, line}); err != nil {
				return err
			}
		}
	}
	return native.SetMetadata(ctx, "words", fmt.Sprint(len(seen)))
}

func run(out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel() // which also ends the stream if run returns early
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	if err := Words.Handle(server, serve); err != nil {
		return err
	}

	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		return err
	}
	stream, err := Words.Open(ctx, ep)
	if err != nil {
		return err
	}
	go func() { // sends while run receives
		for _, line := range []string{"to be or not to be", "that is the question"} {
			if stream.Send(ctx, line) != nil {
				return // Receive returns the error of the stream
			}
		}
		_ = stream.CloseSend()
	}()
	for word, err := range stream.Receive(ctx) {
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, word.Line, word.Text); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, stream.Metadata()["words"], "words")
	return err
}
