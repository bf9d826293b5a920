package filexfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/xfer"
	"cinnabar/xfer/share"
	"cinnabar/xfer/tree"
)

// NewServeFiles returns the command serve-files.
func NewServeFiles(s cli.Streams) *cobra.Command {
	o := &recvOptions{serves: true}
	cmd := &cobra.Command{
		Use:   "serve-files DIR",
		Short: "Serve a directory to cinnabar get and ls",
		Long: `serve-files serves the files and directories below DIR to cinnabar get and cinnabar
ls until it is interrupted. No path leads out of DIR, through symbolic links
neither. Names that begin with a dot are neither served nor listed without
--allow-dotfiles.

It is read-only: cinnabar send is refused, unless --write lets senders store files
in DIR, by the rules of cinnabar recv.

Every host that can connect can read DIR, and nothing is encrypted, unless both
ends have --token-file, the --tls options, or both. So serve-files listens on this
machine's loopback address unless --listen names another one. The certificates are
read again at SIGHUP.

The exit code after an interrupt is 0 if no transfer was cut short by it.`,
		Example: "  cinnabar serve-files public --listen 192.0.2.1 --token-file token\n  cinnabar serve-files --write --overwrite drop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.checkLimits(); err != nil {
				return err
			}
			if err := o.checkWrite(cmd); err != nil {
				return err
			}
			o.dir = args[0]
			o.listenGiven = cmd.Flags().Changed("listen")
			return runRecv(cmd.Context(), o, s)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", cli.ListenHost+":"+defaultPort, "address, HOST:PORT; "+cli.ListenForms)
	f.BoolVar(&o.write, "write", false, "let senders store files in DIR, which are refused otherwise")
	f.BoolVar(&o.storage.Overwrite, "overwrite", false, "with --write, replace files of the same name")
	f.BoolVar(&o.storage.Sync, "fsync", false, "with --write, have each file on the disk before its name and the sender's success")
	keepFlag(f, &o.storage.KeepFor, "with --write, ")
	f.BoolVar(&o.storage.AllowDotFiles, "allow-dotfiles", false, "serve, list and take names that begin with a dot")
	f.StringVar(&o.digestText, "digest", "any", "move only files that are compared by this digest: sha256, blake3, or none; any moves all files")
	o.registerLimits(f)
	o.register(f, s)
	o.security.Reload()
	return cmd
}

// checkWrite refuses options of --write without it.
func (o *recvOptions) checkWrite(cmd *cobra.Command) error {
	for _, name := range []string{"overwrite", "fsync", "keep-for"} {
		if !o.write && cmd.Flags().Changed(name) {
			return cli.Usagef("--%s is for files that senders store, which --write allows", name)
		}
	}
	return nil
}

// files is the type of xfer.Receiver's Files.
type files = func(context.Context, netip.AddrPort, xfer.FileRequest) (xfer.Source, io.Closer, error)

// target is where received files go, and where pulled ones come from.
type target struct {
	open  opener
	files files // nil: pulls are refused
	out   *outputFile
	close func() error
}

// newTarget opens the directory or the output of the options. out is standard output.
func (o *recvOptions) newTarget(ctx context.Context, out io.Writer) (*target, error) {
	if o.output {
		f := newOutput(out, o.timeout)
		return &target{open: f.open, out: f, close: func() error { return nil }}, nil
	}
	if !o.serves {
		dir, err := tree.OpenDir(ctx, o.dir, o.storage)
		if err != nil {
			return nil, fmt.Errorf("open the directory for the files (--dir): %w", err)
		}
		return &target{open: dir.Open, close: dir.Close}, nil
	}
	shared, err := share.OpenDir(o.dir, share.Options{AllowDotFiles: o.storage.AllowDotFiles})
	if err != nil {
		return nil, fmt.Errorf("open the directory to serve: %w", err)
	}
	t := &target{open: refuseFiles, files: shared.Files, close: shared.Close}
	if !o.write {
		return t, nil
	}
	dir, err := tree.OpenDir(ctx, o.dir, o.storage)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the directory to serve: %w", err), shared.Close())
	}
	t.open, t.close = dir.Open, func() error { return errors.Join(dir.Close(), shared.Close()) }
	return t, nil
}

// refuseFiles is the Open of a read-only server.
func refuseFiles(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) {
	return nil, fmt.Errorf("%w: this server is read-only; with cinnabar serve-files --write it stores files", xfer.CodeStorage)
}

// limitServed returns open with the limit of b on all its sources together.
func limitServed(open files, b *bucket) files {
	if b == nil || open == nil {
		return open
	}
	return func(ctx context.Context, peer netip.AddrPort, req xfer.FileRequest) (xfer.Source, io.Closer, error) {
		src, closer, err := open(ctx, peer, req)
		if err == nil {
			src = limitSource(ctx, src, b)
		}
		return src, closer, err
	}
}
