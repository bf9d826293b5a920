package filexfer

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

// syncOptions are the options of send and get about the files that the receiving side has.
type syncOptions struct {
	update, checksum, remove bool
}

// registerSync adds the options to send.
func (o *syncOptions) registerSync(f *pflag.FlagSet) {
	f.BoolVar(&o.update, "update", false, "leave out files of which the receiver has one with the same size and time; implies --preserve")
	f.BoolVar(&o.checksum, "checksum", false, "leave out files of which the receiver has one with the same size and contents")
	f.BoolVar(&o.remove, "delete", false, "remove the entries of the receiver's directory that this one does not have, after printing their list; the receiver must allow it (recv --allow-delete)")
}

// checkSync checks the options.
func (o *syncOptions) checkSync(recursive bool, protocol xfer.Protocol) error {
	switch {
	case o.remove && !recursive:
		return cli.Usagef("--delete is for directories, which --recursive sends")
	case (o.update || o.checksum || o.remove) && protocol == xfer.Basic:
		return cli.Usagef("--update, --checksum and --delete need the fast protocol; with --protocol basic the receiver cannot say what it needs")
	}
	return nil
}

// wishes returns the wishes of --update and --checksum.
func (o *syncOptions) wishes() (w xfer.Wishes) {
	if o.update {
		w |= xfer.WishUpdate
	}
	if o.checksum {
		w |= xfer.WishChecksum
	}
	return w
}

// choice lets the receiver choose the bytes of a file that it needs.
func (o *syncOptions) choice() *xfer.Choice { return &xfer.Choice{Wishes: o.wishes()} }

// treeSource returns the source of a directory. It prints what the receiver will remove.
func (o *sendOptions) treeSource(t *tree.Tree, r *reporter) xfer.Source {
	src := t.Source()
	c := src.Choice
	c.Wishes = o.wishes()
	if !o.remove {
		return src
	}
	c.Wishes |= xfer.WishDelete
	if o.dryRun {
		c.Wishes |= xfer.WishDryRun
	}
	c.Must = true
	may, top := c.Remove, strings.TrimSuffix(src.Name, "/")
	c.Remove = func(p string, dir bool) bool {
		if !may(p, dir) {
			return false
		}
		return r.removal(path.Join(top, p), dir, o.dryRun) == nil
	}
	return src
}

// removalEvent is a line of send --delete --json, and of get --delete --json.
type removalEvent struct {
	Event string `json:"event"` // "removal"
	Path  string `json:"path"`  // below the directory of the receiver, or that of get --dir
	Kind  string `json:"kind"`  // "directory" or "other"
}

// removal prints an entry that the receiver will remove at the end of the transfer. An entry of which it cannot print the line must stay.
func (r *reporter) removal(p string, dir, dry bool) error {
	if r.json {
		e := removalEvent{Event: "removal", Path: p, Kind: "other"}
		if dir {
			e.Kind = tree.Directory.String()
		}
		return r.event(e)
	}
	verb := "removes "
	if dry {
		verb = "would remove "
	}
	if dir {
		p += "/"
	}
	return r.resultf("%s%s", verb, cli.Printable(p))
}

// listRemovals asks the receiver what it would remove, and prints it.
func (o *sendOptions) listRemovals(ctx context.Context, t *sending) error {
	for _, p := range o.files {
		if !o.takes(p) {
			continue
		}
		tr, err := o.scan(ctx, p)
		if err != nil {
			return err
		}
		_, err = t.reach(ctx, limitSource(ctx, o.treeSource(tr, t.r), t.limit))
		cli.Shut(tr)
		if err != nil {
			return t.r.explain(err)
		}
	}
	return nil
}

// defaultKeep is the default of --keep-for.
const defaultKeep = 24 * time.Hour

// keepFlag adds --keep-for to a command. The help text of the option begins with condition.
func keepFlag(f *pflag.FlagSet, keep *time.Duration, condition string) {
	f.DurationVar(keep, "keep-for", defaultKeep, condition+"how long to keep the received part of a failed transfer; a transfer of the same name within that time goes on with it; 0 keeps nothing")
}

// deleteFlag adds --allow-delete to recv.
func (o *recvOptions) deleteFlag(f *pflag.FlagSet) {
	f.BoolVar(&o.storage.AllowDelete, "allow-delete", false, "remove entries that the sender of a directory does not have, for send --delete; needs --overwrite")
}

// checkKeep checks the options.
func (o *recvOptions) checkKeep() error {
	if o.storage.AllowDelete && !o.storage.Overwrite {
		return cli.Usagef("--allow-delete is for directories that are there, which --overwrite lets senders change")
	}
	return checkKeepFor(o.storage.KeepFor)
}

// checkKeepFor checks --keep-for.
func checkKeepFor(keep time.Duration) error {
	if keep < 0 {
		return cli.Usagef("invalid --keep-for %v: it must be positive, such as 24h, or 0 to keep nothing", keep)
	}
	return nil
}
