package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"cinnabar/verbs"
	"cinnabar/xfer"
)

// recvOptions are the options of recv.
type recvOptions struct {
	transferOptions
	listen, dir string
	once        bool
	storage     xfer.DirOptions
}

func newRecv(s streams) *cobra.Command {
	o := &recvOptions{}
	cmd := &cobra.Command{
		Use:   "recv",
		Short: "Receive files from cinnabar send, or from the paper's program",
		Long: `recv takes files until it is interrupted, from any number of senders at once,
and stores them in one directory; nothing outside of it is touched. A file gets
its name when it is complete; until then, and after a failed transfer with
--keep-partial, it is called .cinnabar-*.part. What goes wrong with one sender is
printed and concerns no other.

With --once it ends with the first file that it has begun to store, and the exit
code is that of this file. Requests that are refused before, because of their
name, say, are printed and do not count.

Senders are not asked who they are, and what they send is not encrypted: listen
where only those can connect who may write into the directory.

The exit code after an interrupt is 0 if no transfer was cut short by it.`,
		Example: "  cinnabar recv --dir /tmp/in\n  cinnabar recv --listen '[::1]:7000' --once",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return runRecv(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", ":"+transferPort, "address, HOST:PORT; without HOST every address, port 0 is a free one")
	f.StringVar(&o.dir, "dir", ".", "directory for the files")
	f.BoolVar(&o.once, "once", false, "end with the first file that is begun, with its success or failure")
	f.BoolVar(&o.storage.Overwrite, "overwrite", false, "replace files of the same name, which are refused otherwise")
	f.BoolVar(&o.storage.Sync, "fsync", false, "have each file on the disk before its sender is told so")
	f.BoolVar(&o.storage.KeepPartial, "keep-partial", false, "keep what came of failed transfers")
	f.BoolVar(&o.storage.IgnoreMeta, "no-preserve", false, "do not apply the modes and times of send --preserve")
	o.register(f)
	return cmd
}

// runRecv receives files into the directory.
func runRecv(ctx context.Context, o *recvOptions, s streams) (err error) {
	addrs, err := listenAddrs(ctx, o.listen)
	if err != nil {
		return err
	}
	dir, err := xfer.OpenDir(o.dir, o.storage)
	if err != nil {
		return fmt.Errorf("open the directory for the files (--dir): %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	dev, err := o.openDevice()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	l, err := listenAny(dev, addrs)
	if err != nil {
		return err
	}
	defer shut(l)
	r := &receiving{o: o, r: newReporter(recvWords, o.json, s)}
	if err := r.announce(l); err != nil {
		return err
	}
	server := &xfer.Receiver{Open: dir.Open, Timeout: o.timeout,
		Progress: func() xfer.Progress { return r.r.watch() }}
	if o.once {
		return r.one(ctx, server, l)
	}
	return r.all(ctx, server, l)
}

// receiving is one run of recv.
type receiving struct {
	o   *recvOptions
	r   *reporter
	cut atomic.Bool // a transfer failed because the program was to end
}

// announce says where files are waited for.
func (r *receiving) announce(l *verbs.Listener) error {
	if r.o.json {
		return r.r.event(listeningEvent{Event: "listening", Address: l.Addr().String(), Directory: r.o.dir})
	}
	return r.r.resultf("waiting for files at %s, for directory %s; interrupt (^C) to end", l.Addr(), r.o.dir)
}

// one receives one file: the first of which anything is stored. What is refused
// before is its sender's failure, and the next request is waited for.
func (r *receiving) one(ctx context.Context, server *xfer.Receiver, l *verbs.Listener) error {
	begun, watch := false, server.Progress
	server.Progress = func() xfer.Progress { return &firstProgress{watch(), &begun} }
	for {
		res, err := server.ServeOne(ctx, l)
		if err != nil && !begun && ctx.Err() == nil && concernsPeer(err) {
			r.done(ctx, res, err)
			continue
		}
		if err != nil {
			err = r.r.explain(err)
		}
		return errors.Join(err, r.r.finished("", res, err))
	}
}

// firstProgress takes note that a transfer has begun.
type firstProgress struct {
	xfer.Progress
	begun *bool
}

// Start implements [xfer.Progress].
func (p *firstProgress) Start(res xfer.Result) {
	*p.begun = true
	p.Progress.Start(res)
}

// concernsPeer reports whether a failure is one with a peer, so that another may
// do better.
func concernsPeer(err error) bool {
	x, ok := errors.AsType[*xfer.Error](err)
	return ok && x.Peer.IsValid()
}

// all receives until ctx ends, which is how a server is meant to end.
func (r *receiving) all(ctx context.Context, server *xfer.Receiver, l *verbs.Listener) error {
	server.Done = func(res xfer.Result, err error) { r.done(ctx, res, err) }
	if err := server.Serve(ctx, l); err != nil {
		return err
	}
	if r.cut.Load() {
		return context.Cause(ctx)
	}
	return nil
}

// done prints how one transfer went.
func (r *receiving) done(ctx context.Context, res xfer.Result, err error) {
	if err != nil {
		if ctx.Err() != nil {
			r.cut.Store(true)
		}
		err = r.r.explain(err)
		r.r.notef("%s", printable(oneLine(err)))
	}
	if err := r.r.finished("", res, err); err != nil {
		r.r.notef("print the result: %s", err)
	}
}
