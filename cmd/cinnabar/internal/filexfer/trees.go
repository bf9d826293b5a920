package filexfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

// treeOptions are the options of send about directories.
type treeOptions struct {
	patternOptions
	recursive bool
	dryRun    bool
}

// patternOptions are the options of send and get that leave entries of directories out.
type patternOptions struct {
	patterns []string // of --exclude and --include, in the order of the command line

	parsed *tree.Patterns
}

// registerPatterns adds the options to a command.
func (o *patternOptions) registerPatterns(f *pflag.FlagSet) {
	f.Var(patternFlag{&o.patterns, ""}, "exclude", "leave entries of directories out, by a pattern in gitignore's syntax; may be repeated")
	f.Var(patternFlag{&o.patterns, "!"}, "include", "take entries that --exclude leaves out; the last --exclude or --include that matches decides")
}

// checkPatterns checks the options. verb is that of the command.
func (o *patternOptions) checkPatterns(recursive bool, verb string) (err error) {
	if len(o.patterns) > 0 && !recursive {
		return cli.Usagef("--exclude and --include are for the entries of directories, which --recursive %s", verb)
	}
	if o.parsed, err = tree.ParsePatterns(o.patterns...); err != nil {
		return cli.Usagef("invalid --exclude or --include: %w", err)
	}
	return nil
}

// registerTrees adds the options to send.
func (o *treeOptions) registerTrees(f *pflag.FlagSet) {
	f.BoolVarP(&o.recursive, "recursive", "r", false, "send directories with their contents")
	o.registerPatterns(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "list the entries, and connect to no receiver; with --delete, ask the receiver for the entries that it would remove")
}

// patternFlag is an option that appends its values, with a prefix, to a list that it shares with others.
type patternFlag struct {
	list   *[]string
	prefix string
}

// String implements [pflag.Value]. There is no default.
func (p patternFlag) String() string { return "" }

// Type implements [pflag.Value].
func (p patternFlag) Type() string { return "pattern" }

// Set implements [pflag.Value].
func (p patternFlag) Set(text string) error {
	if text == "" {
		return errors.New("the pattern is empty")
	}
	if text[0] == '#' || p.prefix != "" && text[0] == '!' { // which a file of patterns would take for something else
		text = `\` + text
	}
	if err := tree.CheckPattern(text); err != nil { // because a pattern that matches nothing would let everything pass
		return err
	}
	*p.list = append(*p.list, p.prefix+text)
	return nil
}

// checkTrees checks the options.
func (o *treeOptions) checkTrees(protocol xfer.Protocol) error {
	if o.recursive && protocol == xfer.Basic {
		return cli.Usagef("--recursive needs the fast protocol; --protocol basic carries single files")
	}
	return o.checkPatterns(o.recursive, "sends")
}

// takes reports whether the path is a directory that is sent.
func (o *treeOptions) takes(path string) bool {
	if !o.recursive {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// scan lists a directory.
func (o *sendOptions) scan(ctx context.Context, path string) (*tree.Tree, error) {
	t, err := tree.ScanDir(ctx, path, tree.ScanOptions{Patterns: o.parsed, Preserve: o.preserve})
	if err != nil {
		return nil, fmt.Errorf("list the directory to send, %s: %w", path, err)
	}
	return t, nil
}

// nameOf returns the name under which the receiver stores a file or a directory.
func (o *treeOptions) nameOf(path string) string {
	if o.takes(path) {
		if abs, err := filepath.Abs(path); err == nil {
			return filepath.Base(abs)
		}
	}
	return filepath.Base(path)
}

// tree sends one directory and prints how it went.
func (t *sending) tree(ctx context.Context, path string) (err error) {
	tr, err := t.o.scan(ctx, path)
	if err != nil {
		return err
	}
	defer cli.Shut(tr)
	if t.r.outlook != nil {
		t.r.outlook.tree = tr
		defer func() { t.r.outlook.tree = nil }()
	}
	res, err := t.reach(ctx, limitSource(ctx, t.o.treeSource(tr, t.r), t.limit))
	if err != nil {
		err = t.r.explain(err)
	}
	return errors.Join(err, t.r.finished(path, res, err))
}

// entryEvent is a line of send --dry-run --json.
type entryEvent struct {
	Event  string `json:"event"` // "entry"
	Path   string `json:"path"`  // at the receiver
	Kind   string `json:"kind"`
	Bytes  int64  `json:"bytes"`            // of a file, with its holes
	Target string `json:"target,omitempty"` // of a link
}

// list prints the entries that would be sent.
func (o *sendOptions) list(ctx context.Context, r *reporter) error {
	for _, p := range o.files {
		if !o.takes(p) {
			src, f, err := xfer.OpenFile(p, false)
			if err != nil {
				return fmt.Errorf("open the file to send: %w", err)
			}
			cli.Shut(f)
			if err := o.entry(r, entryEvent{Path: src.Name, Kind: tree.File.String(), Bytes: src.Size}); err != nil {
				return err
			}
			continue
		}
		if err := o.listTree(ctx, r, p); err != nil {
			return err
		}
	}
	return nil
}

func (o *sendOptions) listTree(ctx context.Context, r *reporter, dir string) error {
	t, err := o.scan(ctx, dir)
	if err != nil {
		return err
	}
	defer cli.Shut(t)
	top := strings.TrimSuffix(t.Source().Name, "/")
	m := t.Manifest()
	for p, e := range m.All() {
		event := entryEvent{Path: path.Join(top, p), Kind: e.Kind.String(), Bytes: e.Size, Target: e.Target}
		if e.Kind == tree.HardLink {
			event.Target = path.Join(top, m.Path(e.Link))
		}
		if err := o.entry(r, event); err != nil {
			return err
		}
	}
	return nil
}

// entry prints an entry.
func (o *sendOptions) entry(r *reporter, e entryEvent) error {
	e.Event = "entry"
	if o.json {
		return r.event(e)
	}
	line := cli.Printable(e.Path)
	switch {
	case e.Kind == tree.Directory.String():
		line += "/"
	case e.Target != "":
		line += " -> " + cli.Printable(e.Target) + " (" + e.Kind + ")"
	default:
		line += fmt.Sprintf(" (%d bytes)", e.Bytes)
	}
	return r.resultf("%s", line)
}
