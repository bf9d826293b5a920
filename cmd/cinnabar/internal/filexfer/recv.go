package filexfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/onetime"
	"cinnabar/internal/audit"
	"cinnabar/systemd"
	"cinnabar/verbs"
	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

// recvOptions are the options of recv.
type recvOptions struct {
	options
	listen, dir string
	listenGiven bool // --listen was given
	digestText  string
	digest      xfer.Digest // of digestText; "": any
	once        bool
	codeText    string
	code        onetime.Code // of codeText; the zero Code: none
	output      bool         // the file goes to standard output
	serves      bool         // the command is serve-files
	write       bool         // serve-files stores files
	places      int
	lanes       int
	memoryText  string
	memory      int64 // of memoryText; 0: the default
	storage     tree.DirOptions
}

// NewRecv returns the command recv.
func NewRecv(s cli.Streams) *cobra.Command {
	o := &recvOptions{}
	cmd := &cobra.Command{
		Use:   "recv [-]",
		Short: "Receive files from cinnabar send, or from the paper's program",
		Long: `recv takes files until it is interrupted, from any number of senders at once,
and stores them in one directory; nothing outside of it is touched. A file gets
its name when it is complete; until then it is called .cinnabar-*.part. The part
of a failed transfer stays under such a name for the time of --keep-for, and the
transfer goes on with it when it is sent again; with --keep-partial all of it
stays. The failure of one sender is
printed, in some lines a minute for each host, and concerns no other. A file under its own name is whole, but not after a
power cut unless --fsync is given.

With --once it ends with the first file that it has begun to store, and the exit
code is that of this file. Requests that are refused before, because of their
name, say, are printed and do not count.

With - it writes the first file that a sender begins to standard output, and ends.
All other lines go to standard error. The bytes leave as they come: only
exit code 0 says that all came and that the digest is right.

With --code it takes one file from the sender that has printed the code, and
ends. The code authenticates both ends, and the transfer is encrypted; a code of -
is read from standard input. One wrong try spends the code.

With --digest it takes only files that are compared by that digest. It then refuses
programs that use the basic protocol, which has no digest, unless --digest is none.

Senders are not authenticated, and their data is not encrypted, unless both ends
have --token-file, the --tls options, or both. So recv
listens on this machine's loopback address unless --listen names another one, takes
no names that begin with a dot, and drops execute bits. 0.0.0.0 stands for every
IPv4 address, [::] for every address: without these options choose one that is
reachable only from hosts with users that may write into the directory. The
certificates are read again at SIGHUP.

A directory of send --recursive gets its name when it is complete. With --overwrite
it goes into one that is there, and replaces the files of the same names; with
--allow-delete it also removes entries that the sender does not have, if the sender asks
for that (send --delete).

The exit code after an interrupt is 0 if no transfer was cut short by it.`,
		Example: "  cinnabar recv --dir /tmp/in\n  cinnabar recv --listen 192.0.2.1 --dir /tmp/in\n  cinnabar recv --listen '[::1]:7000' --once\n  cinnabar recv - | tar x",
		Args:    recvArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.checkLimits(); err != nil {
				return err
			}
			if cmd.Flags().Changed("code") {
				if err := o.checkCode(cmd); err != nil {
					return err
				}
				if err := o.readCode(s.In); err != nil {
					return err
				}
				o.once = true
			}
			if o.output = len(args) > 0; o.output {
				o.once = true
				if err := o.checkOutput(cmd, s); err != nil {
					return err
				}
			}
			o.listenGiven = cmd.Flags().Changed("listen")
			return runRecv(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", cli.ListenHost+":"+defaultPort, "address, HOST:PORT; "+cli.ListenForms)
	f.StringVar(&o.dir, "dir", ".", "directory for the files")
	f.BoolVar(&o.once, "once", false, "end with the first file that is begun, with its success or failure")
	f.StringVar(&o.codeText, "code", "", "take one file from the sender that has printed this one-time code (send --code); - reads it from standard input")
	f.StringVar(&o.digestText, "digest", "any", "take only files that are compared by this digest: sha256, blake3, or none; any takes all files")
	f.BoolVar(&o.storage.Overwrite, "overwrite", false, "replace files of the same name, which are refused otherwise")
	f.BoolVar(&o.storage.Sync, "fsync", false, "have each file on the disk before its name and the sender's success")
	f.BoolVar(&o.storage.KeepPartial, "keep-partial", false, "keep the received part of failed transfers")
	f.BoolVar(&o.storage.IgnoreMeta, "no-preserve", false, "do not apply the modes and times of send --preserve")
	f.BoolVar(&o.storage.AllowDotFiles, "allow-dotfiles", false, "take names that begin with a dot")
	f.BoolVar(&o.storage.AllowExec, "allow-exec", false, "apply the execute bits of send --preserve")
	f.BoolVar(&o.storage.AllowOutsideLinks, "allow-links", false, "take symbolic links that may lead out of the directory that is sent")
	keepFlag(f, &o.storage.KeepFor, "")
	o.deleteFlag(f)
	o.registerLimits(f)
	o.register(f, s)
	o.security.Reload()
	return cmd
}

// registerLimits adds the limits of a server to a command.
func (o *recvOptions) registerLimits(f *pflag.FlagSet) {
	f.IntVar(&o.places, "max-connections", 0, "transfers at once, of which one host gets a part (default 64, see cinnabar info)")
	of := "send --lanes"
	if o.serves {
		of = "get --lanes, or with --write of send --lanes"
	}
	f.IntVar(&o.lanes, "max-lanes", 0, "connections of one transfer of "+of+", each of which counts as one of --max-connections (default 8)")
	f.StringVar(&o.memoryText, "max-memory", "", "memory for the buffers of all transfers (default half of the machine's, at most 1GiB, see cinnabar info)")
}

// The least and the most of --max-connections and --max-memory.
const (
	recvMostPlaces  = 1 << 20
	recvLeastMemory = 4 << 10
)

// checkLimits refuses limits that are out of range.
func (o *recvOptions) checkLimits() (err error) {
	if o.places < 0 || o.places > recvMostPlaces {
		return cli.Usagef("invalid --max-connections %d: 1 to %d, 0 for the default", o.places, recvMostPlaces)
	}
	if o.lanes < 0 || o.lanes > xfer.MaxLanes {
		return cli.Usagef("invalid --max-lanes %d: 1 to %d, 0 for the default", o.lanes, xfer.MaxLanes)
	}
	if o.digest, err = parseRecvDigest(o.digestText); err != nil {
		return err
	}
	if o.memoryText != "" {
		if o.memory, err = cli.ParseSize("--max-memory", o.memoryText, recvLeastMemory, 1<<62); err != nil {
			return err
		}
	}
	if err := o.checkKeep(); err != nil {
		return err
	}
	return o.check()
}

// maxChunk returns the largest chunk that recv allows, 0 for the default. With --limit it is one that does not take long.
func (o *recvOptions) maxChunk() int {
	if o.limit.rate == 0 {
		return 0
	}
	return int(o.limit.chunk(unlimitedChunk))
}

// anyDigest is the value of --digest that takes all digests.
const anyDigest xfer.Digest = "any"

// parseRecvDigest returns the digest of recv --digest, "" for any.
func parseRecvDigest(text string) (xfer.Digest, error) {
	d, err := cli.ParseName("--digest", text, anyDigest, xfer.SHA256, digestBLAKE3, xfer.NoDigest)
	if d == anyDigest {
		d = ""
	}
	return d, err
}

// runRecv receives files into the directory.
func runRecv(ctx context.Context, o *recvOptions, s cli.Streams) (err error) {
	addrs, err := o.onSocket(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if o.socket != nil {
			cli.Shut(o.socket) // the listener has closed it already, unless an error came before
		}
	}()
	to, err := o.newTarget(ctx, s.Out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	if o.output {
		defer withoutPipeSignal()()
		s.Out = s.Err
	}
	r := newReceiving(ctx, o, s)
	open := to.open
	if o.code != (onetime.Code{}) {
		if o.socket != nil {
			return cli.Usagef("--code was given with a socket of the service manager; it is for two people")
		}
		if err := r.meet(ctx, addrs); err != nil {
			return err
		}
		addrs = []netip.AddrPort{addrOf(o.socket)}
		limited, cancel, limitedOpen := r.untilOpened(ctx, open)
		defer cancel(nil)
		ctx, open = limited, limitedOpen
	}
	dev, err := o.openDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()); o.stop() }()
	l, err := listenAny(dev, addrs)
	if err != nil && o.device != "" && o.device != cli.SoftwareDevice && addrs[0].Addr().IsLoopback() {
		err = fmt.Errorf("%w; device %s has no loopback address, so --listen must name one of its own", err, o.device)
	}
	if err != nil {
		return err
	}
	defer cli.Shut(l)
	if o.meeting == nil {
		if err := r.announce(l.Addr().String()); err != nil {
			return err
		}
	}
	server := &xfer.Receiver{Open: r.limit.files(open), Files: limitServed(to.files, r.limit), MaxChunk: o.maxChunk(), Timeout: o.timeout, MaxConnections: o.places, MaxLanes: o.lanes, MaxMemory: o.memory, Logger: cli.LoggerOf(ctx),
		Digest: o.digest, Hashes: hashes(),
		Progress: func() xfer.Progress { return r.r.watch() }}
	status := o.status() + l.Addr().String()
	if !o.once {
		return r.all(ctx, server, l, func(ctx context.Context) (func(), error) {
			return s.StartService(ctx, status, selfCheck{dev, l.Addr()}.open)
		})
	}
	stop, err := s.StartService(ctx, status, noCheck)
	if err != nil {
		return err
	}
	defer stop()
	if o.output {
		return r.output(ctx, server, l, to.out)
	}
	return r.one(ctx, server, l)
}

// selfCheck makes requests to the receiver of this process, for the watchdog of the service manager.
type selfCheck struct {
	dev  *verbs.Device
	addr netip.AddrPort
}

func (c selfCheck) open(context.Context) ([]cli.Check, error) { return []cli.Check{c}, nil }

// Check implements [cli.Check].
func (c selfCheck) Check(ctx context.Context) error {
	if err := xfer.Ping(ctx, c.dev, c.addr); err != nil && !systemd.Answered(err) {
		return fmt.Errorf("the receiver does not answer requests of its own process: %w", err)
	}
	return nil
}

// Close implements [cli.Check].
func (selfCheck) Close() error { return nil }

// noCheck is the check of recv --once, which takes no further request while it receives its file.
func noCheck(context.Context) ([]cli.Check, error) {
	return nil, errors.New("WATCHDOG_USEC is set, and recv --once answers no request while it receives its file; remove WatchdogSec= from its unit")
}

// status returns the beginning of the line about the command for the service manager.
func (o *recvOptions) status() string {
	if o.serves {
		return "serving files at "
	}
	return "waiting for files at "
}

// addrOf returns the address of a listener.
func addrOf(l *net.TCPListener) netip.AddrPort {
	a, _ := netip.ParseAddrPort(l.Addr().String()) // as the address of a socket prints itself
	return a
}

// receiving is one run of recv.
type receiving struct {
	o   *recvOptions
	r   *reporter
	cut atomic.Bool // a transfer failed because the program was to end

	limit *bucket // of all transfers; nil: none

	// ends the command if the one file of a code was refused
	refused atomic.Pointer[func()]
}

func newReceiving(ctx context.Context, o *recvOptions, s cli.Streams) *receiving {
	r := &receiving{o: o, r: newReporter(ctx, recvWords, o.json, s), limit: newBucket(o.limit.rate)}
	r.r.starts = audit.NewLimiter()
	r.r.pulled = serveWords
	return r
}

// announce prints the address at which the command waits for files, and their directory.
func (r *receiving) announce(address string) error {
	if r.o.output {
		return r.r.resultf("waiting for one file at %s, for standard output", address)
	}
	if r.o.json {
		return r.r.event(listeningEvent{Event: "listening", Address: address, Directory: r.o.dir})
	}
	if r.o.serves {
		how := "read-only"
		if r.o.write {
			how = "for reading and writing"
		}
		return r.r.resultf("serving directory %s at %s, %s; interrupt (^C) to end", r.o.dir, address, how)
	}
	if r.o.once {
		return r.r.resultf("waiting for one file at %s, for directory %s", address, r.o.dir)
	}
	return r.r.resultf("waiting for files at %s, for directory %s; interrupt (^C) to end", address, r.o.dir)
}

// one receives the first file that a sender begins. Until then it serves several senders at a time, and the failure of one of these
// does not end it.
func (r *receiving) one(ctx context.Context, server *xfer.Receiver, l *verbs.Listener) error {
	server.Done = func(res xfer.Result, err error) {
		r.done(ctx, res, err)
		r.endRefused()
	}
	res, err := server.ServeFirst(ctx, l)
	if err != nil {
		err = r.explain(err)
	}
	return errors.Join(err, r.r.finished("", res, err))
}

// all receives until ctx ends, which is how a server is meant to end. It calls start when the receiver serves, and the function that start returns at the
// end of ctx. Transfers under way go on after SIGTERM, for a time, and are cut short after another end of ctx.
func (r *receiving) all(ctx context.Context, server *xfer.Receiver, l *verbs.Listener, start func(ctx context.Context) (stop func(), err error)) error {
	transfers, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	server.Done = func(res xfer.Result, err error) { r.done(transfers, res, err) }
	starting, serves := context.WithCancel(ctx)
	defer serves()
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = server.Serve(transfers, l)
		serves() // ends start, if it still waits for an answer of the receiver
	}()
	stop, startErr := start(starting)
	if startErr == nil {
		select {
		case <-ctx.Done():
		case <-ended:
		}
		stop()
	}
	cli.Shut(l) // so that Serve returns after the transfers under way
	if startErr == nil && cli.Terminated(ctx) {
		limited, cancel := cli.Draining(ctx)
		defer cancel()
		select {
		case <-limited.Done():
		case <-ended:
		}
	}
	cut(context.Cause(ctx))
	<-ended
	switch {
	case startErr != nil && (err == nil || errors.Is(err, verbs.ErrClosed)):
		return startErr
	case startErr != nil:
		return err
	case err != nil && (ctx.Err() == nil || !errors.Is(err, verbs.ErrClosed)):
		return err
	}
	if r.cut.Load() {
		return context.Cause(ctx)
	}
	return nil
}

// explain adds the remedy to a failure, and the directory if the failure is one of the disk.
func (r *receiving) explain(err error) error {
	x, ok := errors.AsType[*xfer.Error](err)
	err = r.r.explain(err)
	if ok && x.Code == xfer.CodeStorage && !x.Remote && !r.o.output {
		return fmt.Errorf("%w; the directory is %s", err, r.o.dir)
	}
	return err
}

// cutShort reports whether a transfer failed with err because ctx ended. That ctx has ended does not show it, because the receiver reports a transfer only after
// the peer has closed the connection: a transfer that was refused before the end of ctx may be reported after it.
func cutShort(ctx context.Context, err error) bool {
	if errors.Is(err, context.Cause(ctx)) {
		return true
	}
	x, ok := errors.AsType[*xfer.Error](err)
	return ok && x.Code == xfer.CodeCanceled && !x.Remote
}

// done prints how one transfer went. ctx is that of the transfers.
func (r *receiving) done(ctx context.Context, res xfer.Result, err error) {
	if err != nil {
		if ctx.Err() != nil && cutShort(ctx, err) {
			r.cut.Store(true)
		}
		more, ok := cli.MayPrint(res.Peer)
		if !ok {
			return
		}
		err = r.explain(err)
		r.r.notef("%s%s", cli.Printable(cli.OneLine(err)), more)
	}
	if err := r.r.finished("", res, err); err != nil {
		r.r.notef("print the result: %s", err)
	}
}
