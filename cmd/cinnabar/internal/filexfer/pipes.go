package filexfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/xfer"
)

// standard is the word of the command line for standard input or output.
const standard = "-"

// defaultStreamName is the name of standard input at the receiver.
const defaultStreamName = "stdin"

// checkName checks --name, which is for one file, or standard input among several.
func (o *sendOptions) checkName(paths []string) error {
	inputs := 0
	for _, path := range paths {
		if path == standard {
			inputs++
		}
	}
	switch {
	case o.code && len(paths) > 1:
		return cli.Usagef("--code was given with %d files; a code is good for one file, or one directory with --recursive", len(paths))
	case o.code && o.dryRun:
		return cli.Usagef("--code was given with --dry-run, which sends nothing; leave one of them out")
	case inputs > 1:
		return cli.Usagef("standard input, -, was given %d times; it can be sent once", inputs)
	case inputs > 0 && o.sender.Protocol == xfer.Basic:
		return cli.Usagef("standard input has no size beforehand, which the fast protocol can do without; --protocol basic is for files")
	case inputs > 0 && (o.update || o.checksum):
		return cli.Usagef("standard input, -, has no size beforehand, by which --update and --checksum compare files; send it by a command of its own")
	case inputs > 0 && o.dryRun:
		return cli.Usagef("--dry-run lists files; standard input, -, has no size beforehand")
	case o.name == "":
		return nil
	case inputs == 0 && len(paths) > 1:
		return cli.Usagef("--name %s was given with %d files; it is for one, or for standard input", o.name, len(paths))
	case inputs == 0 && o.takes(paths[0]):
		return cli.Usagef("--name %s was given for a directory; it is for one file, or for standard input", o.name)
	}
	if err := xfer.CheckName(o.name); err != nil {
		return cli.Usagef("invalid --name: %w", err)
	}
	return nil
}

// streamName returns the name of standard input at the receiver.
func (o *sendOptions) streamName() string {
	if o.name == "" {
		return defaultStreamName
	}
	return o.name
}

// limitedStream is a stream that a bucket limits.
type limitedStream struct {
	io.Reader
	ctx context.Context // of the transfer
	b   *bucket
}

// Read implements [io.Reader]. It waits behind the read, because only that shows how many bytes there are.
func (r limitedStream) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if lerr := r.b.take(r.ctx, n); lerr != nil {
		return 0, lerr
	}
	return n, err
}

// stdin sends standard input and prints how it went.
func (t *sending) stdin(ctx context.Context) error {
	src := xfer.Source{Name: t.o.streamName(), Stream: t.in}
	if t.limit != nil {
		src.Stream = limitedStream{t.in, ctx, t.limit}
	}
	res, err := t.reach(ctx, src)
	if err != nil {
		err = t.r.explain(err)
	}
	return errors.Join(err, t.r.finished(standard, res, err))
}

// recvArgs takes no arguments, or the one word for standard output.
func recvArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] == standard {
		return nil
	}
	if len(args) == 1 {
		return fmt.Errorf("the command takes no arguments, and %q was given; - is standard output, and --dir names the directory for the files", args[0])
	}
	return cli.NoArgs(cmd, args)
}

// forFiles are the options of recv and get that have no meaning for standard output.
var forFiles = []string{"dir", "overwrite", "fsync", "keep-partial", "no-preserve", "allow-dotfiles", "allow-exec", "allow-links", "keep-for", "allow-delete", "json", "update", "checksum", "delete", "dry-run", "lanes", "exclude", "include"}

// checkOutput checks that standard output can take a file.
func (o *recvOptions) checkOutput(cmd *cobra.Command, s cli.Streams) error {
	for _, name := range forFiles {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s was given with -; the file goes to standard output", name)
		}
	}
	return refuseTerminal(s)
}

// refuseTerminal refuses to write data of a peer to a terminal, which may obey it.
func refuseTerminal(s cli.Streams) error {
	if cli.IsTerminal(s.Out) {
		return cli.Usagef("standard output is a terminal, which may obey bytes of the peer: send them to a pipe or a file, as by >FILE")
	}
	return nil
}

// withoutPipeSignal makes writes to a closed pipe fail instead of ending the process, so that the peer gets the reason, until the returned
// function is called.
func withoutPipeSignal() (restore func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGPIPE)
	return func() { signal.Stop(signals) }
}

// outputFile is standard output as the destination of a transfer. Bytes leave when they come, before the digest of all is compared.
type outputFile struct {
	w       io.Writer
	ctx     context.Context // of Open
	timeout time.Duration   // of a write
	begun   bool            // a transfer has begun
	at      int64           // bytes that have left
	failed  error           // a write was given up, so none may follow
	buf     []byte          // a copy, because a write that was given up goes on
}

// WriteAt implements [io.WriterAt]. Writes follow one another.
func (f *outputFile) WriteAt(b []byte, offset int64) (int, error) {
	if f.failed != nil {
		return 0, f.failed
	}
	if offset != f.at {
		return 0, fmt.Errorf("the data for standard output comes at offset %d; %d is due", offset, f.at)
	}
	f.buf = append(f.buf[:0], b...)
	type written struct {
		n   int
		err error
	}
	done := make(chan written, 1)
	go func(b []byte) { // ends at the latest with the process
		n, err := f.w.Write(b)
		done <- written{n, err}
	}(f.buf)
	limit := time.NewTimer(f.timeout)
	defer limit.Stop()
	select {
	case w := <-done:
		f.at += int64(w.n)
		if errors.Is(w.err, syscall.EPIPE) {
			w.err = errors.New("the reader of the receiver's standard output has closed it")
		}
		return w.n, w.err
	case <-f.ctx.Done():
		f.failed = fmt.Errorf("the transfer has ended before the reader of standard output has taken its bytes: %w", context.Cause(f.ctx))
		return 0, f.failed
	case <-limit.C:
		f.failed = fmt.Errorf("the reader of the receiver's standard output has taken nothing for %v, its --timeout", f.timeout)
		return 0, f.failed
	}
}

// newOutput returns the destination for one transfer.
func newOutput(w io.Writer, timeout time.Duration) *outputFile {
	return &outputFile{w: w, timeout: timeout}
}

// Commit implements [xfer.File]. The bytes have left already.
func (f *outputFile) Commit() error { return f.failed }

// Discard implements [xfer.File].
func (f *outputFile) Discard() error { return nil }

// open is the Open of a receiver that writes one file to standard output.
func (f *outputFile) open(ctx context.Context, _ netip.AddrPort, name string, _ xfer.Meta, _ int64) (xfer.File, error) {
	if strings.HasSuffix(name, "/") {
		return nil, fmt.Errorf("%w: %q is a directory, and this receiver writes one file to its standard output", xfer.CodeName, strings.TrimSuffix(name, "/"))
	}
	f.begun, f.ctx = true, ctx
	return f, nil
}

// output receives one file into standard output.
func (r *receiving) output(ctx context.Context, server *xfer.Receiver, l *verbs.Listener, f *outputFile) error {
	err := r.one(ctx, server, l)
	return f.explain(err)
}

// explain adds to the error of a transfer that the bytes are not the whole file, if some may have left.
func (f *outputFile) explain(err error) error {
	if err == nil || !f.begun {
		return err
	}
	return fmt.Errorf("%w; the bytes that left through standard output are not the whole file", err)
}
