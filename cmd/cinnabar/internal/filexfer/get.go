package filexfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/xfer"
	"cinnabar/xfer/share"
	"cinnabar/xfer/tree"
)

// pullOptions are the options of get and ls.
type pullOptions struct {
	options
	patternOptions
	digestText string
	dir, out   string
	recursive  bool
	sync       syncOptions
	dryRun     bool
	lanes      int
	storage    tree.DirOptions

	puller xfer.Puller      // the above, parsed
	peers  []netip.AddrPort // the server's addresses
	paths  []string
}

// NewGet returns the command get.
func NewGet(s cli.Streams) *cobra.Command {
	o := &pullOptions{}
	cmd := &cobra.Command{
		Use:   "get HOST[:PORT] PATH...",
		Short: "Pull files from cinnabar serve-files",
		Long: `get pulls files, and with --recursive directories, from cinnabar serve-files. A PATH
begins at the directory that is served, which is . itself. Each file or directory
is stored under the last element of its PATH, with all the guarantees of cinnabar
recv: it gets its name when it is complete and its digest was compared.

If a pull is cut, also by ^C, the same get goes on where it stopped, within the
time of --keep-for. Both sides compare the sums of the received part first.

With --lanes N it spreads a file or a directory over N connections, or over fewer if
the server grants fewer (serve-files --max-lanes). This helps where one connection
does not fill the network; within one machine it gains little.

--update and --checksum pull only the files that differ from those here, and replace
those. The server learns which files of its list are here, and with --checksum also
which blocks of files of the same size are equal.

--delete prints the list of the entries of the directory here that the server does
not serve, and removes them when all files are here. --delete --dry-run prints the
list and does nothing else. Entries whose names begin with a dot stay, unless
--allow-dotfiles is given.

--exclude and --include leave entries of directories out, as those of cinnabar send do:
such entries are neither stored nor removed here. The server does not get the patterns.
It refuses a directory that holds, for example, a device, even if --exclude leaves the
device out.

With --output it stores one file or directory under another name, which the whole
served directory needs. --output - is standard output, where the bytes of a file
leave as they come: only exit code 0 says that all came and that the digest is
right.`,
		Example: "  cinnabar get 192.0.2.1 notes.txt\n  cinnabar get -r --dir /tmp/in 192.0.2.1:7000 photos/2026\n  cinnabar get -r 192.0.2.1 . --output all\n  cinnabar get -r --update --exclude '*.raw' 192.0.2.1 photos\n  cinnabar get 192.0.2.1 src.tar --output - | tar x",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(cmd.Context(), args); err != nil {
				return err
			}
			if err := o.checkOutput(cmd, s); err != nil {
				return err
			}
			return o.run(cmd.Context(), s, o.get)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.recursive, "recursive", "r", false, "pull directories with their contents")
	o.registerPatterns(f)
	f.StringVar(&o.dir, "dir", ".", "directory for the files")
	f.StringVarP(&o.out, "output", "o", "", "name of the file or directory here, for one PATH, or - for standard output (default the last element of PATH)")
	f.IntVar(&o.lanes, "lanes", 1, "connections over which a file or a directory is spread, at most; 1 to 64")
	f.BoolVar(&o.storage.Overwrite, "overwrite", false, "replace files of the same name, which are refused otherwise")
	f.BoolVar(&o.sync.update, "update", false, "leave out files of which there is one here with the same size and time; implies --overwrite")
	f.BoolVar(&o.sync.checksum, "checksum", false, "leave out files of which there is one here with the same size and contents; implies --overwrite")
	f.BoolVar(&o.sync.remove, "delete", false, "remove the entries of a directory here that the server's directory does not have, after printing their list; implies --overwrite")
	f.BoolVar(&o.dryRun, "dry-run", false, "with --delete, list the entries that would be removed, and store nothing")
	f.BoolVar(&o.storage.Sync, "fsync", false, "have each file on the disk before its name")
	keepFlag(f, &o.storage.KeepFor, "")
	f.BoolVar(&o.storage.KeepPartial, "keep-partial", false, "keep the received part of each failed transfer for ever, instead of for --keep-for")
	f.BoolVar(&o.storage.IgnoreMeta, "no-preserve", false, "do not apply the modes and times of the server's files")
	f.BoolVar(&o.storage.AllowDotFiles, "allow-dotfiles", false, "take names that begin with a dot")
	f.BoolVar(&o.storage.AllowExec, "allow-exec", false, "apply the execute bits of the server's files")
	f.BoolVar(&o.storage.AllowOutsideLinks, "allow-links", false, "take symbolic links that may lead out of the directory that is pulled")
	f.StringVar(&o.digestText, "digest", "sha256", "digest by which whole files are compared: sha256, blake3 (the server must have it too), or none")
	o.register(f, s)
	return cmd
}

// NewList returns the command ls.
func NewList(s cli.Streams) *cobra.Command {
	o := &pullOptions{digestText: string(xfer.SHA256), lanes: 1}
	cmd := &cobra.Command{
		Use:   "ls HOST[:PORT] [PATH]",
		Short: "List a directory of cinnabar serve-files",
		Long: `ls prints the entries of a directory, or the one file, that cinnabar serve-files
serves at PATH: the permission bits, the size in bytes, the time of modification
and the name. Directories end in a slash, and -> shows the target of a symbolic
link. A name with characters that a terminal may obey stands in quotes.`,
		Example: "  cinnabar ls 192.0.2.1\n  cinnabar ls 192.0.2.1:7000 photos/2026 --json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				args = append(args, ".")
			}
			if err := o.parse(cmd.Context(), args); err != nil {
				return err
			}
			return o.run(cmd.Context(), s, o.list)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.register(f, s)
	if err := f.MarkHidden("limit"); err != nil {
		panic(err) // register has added the flag
	}
	return cmd
}

// parse checks the options and the arguments before anything is connected.
func (o *pullOptions) parse(ctx context.Context, args []string) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if err := checkKeepFor(o.storage.KeepFor); err != nil {
		return err
	}
	if o.lanes < 1 || o.lanes > xfer.MaxLanes {
		return cli.Usagef("invalid --lanes %d: 1 to %d", o.lanes, xfer.MaxLanes)
	}
	if err := o.checkPatterns(o.recursive, "pulls"); err != nil {
		return err
	}
	o.storage.Patterns = o.parsed
	if o.sync.remove && !o.recursive {
		return cli.Usagef("--delete is for directories, which --recursive pulls")
	}
	if o.dryRun && !o.sync.remove {
		return cli.Usagef("--dry-run lists the entries that --delete would remove")
	}
	if o.sync.update && o.storage.IgnoreMeta {
		return cli.Usagef("--no-preserve was given with --update, which compares times: without those of the server's files they differ each time")
	}
	o.puller = xfer.Puller{Timeout: o.timeout, Hashes: hashes(), Lanes: o.lanes, Wishes: o.sync.wishes()}
	if o.storage.AllowDelete = o.sync.remove; o.sync.remove {
		o.puller.Wishes |= xfer.WishDelete
	}
	if o.dryRun {
		o.puller.Wishes |= xfer.WishDryRun
	}
	o.storage.Overwrite = o.storage.Overwrite || o.puller.Wishes != 0
	if o.puller.Digest, err = cli.ParseName("--digest", o.digestText, xfer.SHA256, digestBLAKE3, xfer.NoDigest); err != nil {
		return err
	}
	if n := o.limit.chunk(unlimitedChunk); n < unlimitedChunk {
		o.puller.Chunk = int(n)
	}
	o.paths = args[1:]
	names := map[string]string{}
	for _, p := range o.paths {
		if len(p) > xfer.MaxRequest {
			return cli.Usagef("PATH %.40s... has %d bytes; at most %d are possible: ask for a directory above it", p, len(p), xfer.MaxRequest)
		}
		if p == "" {
			return cli.Usagef("a PATH is empty; the served directory itself is .")
		}
		name := localName(p)
		if other, twice := names[name]; twice {
			return cli.Usagef("%s and %s would both be stored as %q; pull them one by one into different directories", other, p, name)
		}
		names[name] = p
	}
	host, port, err := hostPort(args[0])
	if err == nil && host == "" {
		err = fmt.Errorf("address %q: no host", args[0])
	}
	if err != nil {
		return cli.Usagef("%w; the first argument is the server", err)
	}
	o.host, o.peers, err = resolve(ctx, host, port)
	if err != nil {
		return fmt.Errorf("server %s: %w; the first argument is the server, HOST or HOST:PORT", args[0], err)
	}
	return nil
}

// localName returns the last element of a path, and "/" for the served directory itself, which has no name that the user has seen.
func localName(p string) string { return path.Base(path.Clean("/" + p)) }

// checkOutput checks --output.
func (o *pullOptions) checkOutput(cmd *cobra.Command, s cli.Streams) error {
	switch {
	case o.out == "":
		for _, p := range o.paths {
			if localName(p) == "/" {
				return cli.Usagef("PATH %s is the whole served directory; --output NAME gives it a name here, because the server is not to choose one", p)
			}
		}
		return nil
	case len(o.paths) > 1:
		return cli.Usagef("--output %s was given with %d paths; it is for one", o.out, len(o.paths))
	case o.recursive && o.out == standard:
		return cli.Usagef("--output - was given with --recursive; standard output takes one file")
	case o.out != standard:
		if err := xfer.CheckName(o.out); err != nil {
			return cli.Usagef("invalid --output: %w; --dir names the directory", err)
		}
		return nil
	}
	for _, name := range forFiles {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return cli.Usagef("--%s was given with --output -; the file goes to standard output", name)
		}
	}
	return refuseTerminal(s)
}

// run opens the device for do.
func (o *pullOptions) run(ctx context.Context, s cli.Streams, do func(context.Context, *verbs.Device, cli.Streams) error) (err error) {
	dev, err := o.openDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()); o.stop() }()
	return do(ctx, dev, s)
}

// reach calls do for the first address of the server that answers, and keeps that.
func (o *pullOptions) reach(do func(netip.AddrPort) error) error {
	var errs []error
	for n, peer := range o.peers {
		err := do(peer)
		if err == nil || !unreachable(err) {
			o.peers = o.peers[n : n+1]
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// get pulls the files in order, each over a connection of its own.
func (o *pullOptions) get(ctx context.Context, dev *verbs.Device, s cli.Streams) (err error) {
	var open opener
	var dir *tree.Dir
	var out *outputFile
	if o.out == standard {
		defer withoutPipeSignal()()
		out = newOutput(s.Out, o.timeout)
		open = out.open
		s.Out = s.Err
	} else {
		if dir, err = tree.OpenDir(ctx, o.dir, o.storage); err != nil {
			return fmt.Errorf("open the directory for the files (--dir): %w", err)
		}
		defer cli.Shut(dir)
		open = dir.Open
		o.puller.Choose = true
	}
	limit := newBucket(o.limit.rate)
	r := newReporter(ctx, getWords, o.json, s)
	r.leavesOut = len(o.patterns) > 0
	o.puller.Logger = cli.LoggerOf(ctx)
	if !o.dryRun {
		o.puller.Progress = func() xfer.Progress { return r.watch() }
	}
	failed := 0
	for n, p := range o.paths {
		stored := ""       // name under which the file is stored here
		var unlisted error // of the first line of the list of removals that was not printed
		o.puller.Remove = func(_ context.Context, below string, isDir bool) bool {
			err := r.removal(path.Join(stored, below), isDir, o.dryRun)
			unlisted = cmp.Or(unlisted, err)
			return err == nil
		}
		o.puller.Open = limit.files(o.expects(p, func(ctx context.Context, _ netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
			stored = name
			return open(ctx, netip.AddrPort{}, name, meta, size) // no other host has a part of the memory
		}))
		var res xfer.Result
		err := o.reach(func(peer netip.AddrPort) (err error) {
			res, err = o.puller.Pull(ctx, dev, peer, xfer.FileRequest{Op: xfer.RequestFile, Path: p})
			return err
		})
		if err != nil {
			err = r.explain(err)
			if out != nil {
				err = out.explain(err)
			} else if !errors.Is(err, xfer.CodeExists) && dir.HasPart(stored) { // with CodeExists the part belongs to a transfer that still runs
				err = fmt.Errorf("%w; a received part stays in --dir (%s): run the same get again, and it goes on from that part, unless the server is of an earlier version", err, o.keeps())
			}
		}
		if !o.dryRun {
			err = errors.Join(err, r.finished(p, res, err))
		}
		if unlisted != nil {
			err = errors.Join(err, fmt.Errorf("print the list of removals: %w; entries that are not in the list stay", unlisted))
		}
		if err == nil {
			continue
		}
		if len(o.paths) == 1 && ctx.Err() == nil {
			return err
		}
		failed++
		r.notef("%s: %s", cli.Printable(p), cli.Printable(withoutName(err)))
		if ctx.Err() != nil || !concernsFile(err) {
			failed += len(o.paths) - n - 1
			break
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d files were not pulled", failed, len(o.paths))
	}
	return nil
}

// keeps returns the option by which the received part of a failed transfer stays.
func (o *pullOptions) keeps() string {
	if o.storage.KeepPartial {
		return "--keep-partial"
	}
	return fmt.Sprintf("--keep-for %v", o.storage.KeepFor)
}

// expects returns open for the file at a path: it refuses another name than the one that was asked for, and stores the file under that, or the one of
// --output. No name is the server's choice.
func (o *pullOptions) expects(p string, open opener) opener {
	want := localName(p)
	return func(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
		base, isTree := strings.CutSuffix(name, "/")
		if isTree && !o.recursive {
			return nil, fmt.Errorf("%w: %q is a directory at the server; --recursive pulls directories too", xfer.CodeName, p)
		}
		if want == "/" && o.out == "" {
			return nil, fmt.Errorf("%w: %q has no name here; --output NAME gives it one", xfer.CodeName, p)
		}
		if want != "/" && base != want {
			return nil, fmt.Errorf("%w: the server calls %q %q, which was not asked for", xfer.CodeProtocol, p, base)
		}
		if o.out != "" && o.out != standard {
			if name = o.out; isTree {
				name += "/"
			}
		}
		return open(ctx, from, name, meta, size)
	}
}

// list prints the list of a directory.
func (o *pullOptions) list(ctx context.Context, dev *verbs.Device, s cli.Streams) error {
	o.puller.Logger = cli.LoggerOf(ctx)
	var entries []share.Entry
	err := o.reach(func(peer netip.AddrPort) (err error) {
		entries, err = share.List(ctx, o.puller, dev, peer, o.paths[0])
		return err
	})
	r := newReporter(ctx, getWords, o.json, s)
	if err != nil {
		return r.explain(err)
	}
	if o.json {
		for _, e := range entries {
			if err := r.event(listedEvent{e, fmt.Sprintf("%04o", e.Mode.Perm())}); err != nil {
				return err
			}
		}
		return nil
	}
	width := 1
	for _, e := range entries {
		width = max(width, len(strconv.FormatInt(e.Size, 10)))
	}
	for _, e := range entries {
		if err := r.resultf("%s %*d %s %s", modeText(e), width, e.Size, e.ModTime.Local().Format(time.DateTime), nameText(e)); err != nil {
			return err
		}
	}
	return nil
}

// listedEvent is a line of ls --json.
type listedEvent struct {
	share.Entry
	Mode string `json:"mode"` // permission bits in octal digits
}

// modeText returns kind and permission bits as ls(1) prints them.
func modeText(e share.Entry) string {
	m := e.Mode.Perm()
	switch e.Kind {
	case share.KindDirectory:
		m |= fs.ModeDir
	case share.KindSymlink:
		m |= fs.ModeSymlink
	case share.KindOther:
		return "?" + m.String()[1:]
	default: // a file
	}
	if e.Kind == share.KindSymlink {
		return "l" + m.Perm().String()[1:]
	}
	return m.String()
}

// nameText returns the name of an entry for people.
func nameText(e share.Entry) string {
	name := quoted(e.Name)
	switch e.Kind {
	case share.KindDirectory:
		return name + "/"
	case share.KindSymlink:
		return name + " -> " + quoted(e.Target)
	default:
		return name
	}
}

// quoted returns text of the peer in quotes if a terminal may obey it, or it could be taken for other text.
func quoted(text string) string {
	if cli.Printable(text) != text || strings.HasPrefix(text, `"`) || strings.TrimSpace(text) != text || text == "" {
		return strconv.QuoteToASCII(text)
	}
	return text
}
