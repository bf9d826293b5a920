package filexfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/xfer"
)

// The limits of --chunk and --buffers. The receiver's limits come on top.
const (
	minChunk   = 4 << 10 // bytes
	maxChunk   = 1 << 30 // bytes
	maxBuffers = 1024
	// A limited transfer asks for smaller chunks only if it is slow for chunks of the size that receivers choose.
	unlimitedChunk = 512 << 10 // bytes
)

// sendOptions are the options of send.
type sendOptions struct {
	options
	treeOptions
	syncOptions
	protocol, digest, chunk string // as given
	name                    string // of the file at the receiver; empty: its own
	preserve, code          bool
	buffers, lanes          int

	sender xfer.Sender      // the above, parsed
	files  []string         // paths
	peers  []netip.AddrPort // the receiver's addresses
}

// NewSend returns the command send.
func NewSend(s cli.Streams) *cobra.Command {
	o := &sendOptions{}
	cmd := &cobra.Command{
		Use:   "send FILE... HOST[:PORT]",
		Short: "Send files to cinnabar recv, or to the paper's program",
		Long: `send writes files into the memory of a receiver by RDMA, which stores them under
their base names. Both sides agree on the protocol when they connect: fast has
several buffers in turn and overlaps disks and network, basic is that of the
paper, with one buffer, which any receiver has. IPv6 addresses with a port stand
in brackets, [::1]:12345.

The protocol fast compares each file by a digest before the file gets its name.
blake3 takes less processor time than sha256; a receiver that does not have it
refuses the transfer. A digest finds accidental errors and does not authenticate
the sender.

With --recursive it sends directories too, each under the last element of its
path: with symbolic links as links, hard links, and the holes of sparse files
where the system shows them. The receiver refuses a directory with names that it
cannot store before it writes anything.

A transfer that was cut goes on where it stopped when it is sent again, within the
time of recv --keep-for. Both sides compare the sums of the received part first.
--update and --checksum leave files out that the receiver has, and --delete removes
entries that the sender does not have; --delete --dry-run asks the receiver for the
list.
Entries that --exclude leaves out are not removed.

With --lanes N it spreads a file or a directory over N connections at most, of which
the receiver grants some (recv --max-lanes), all with the encryption and the tokens of
the first one. This helps where one connection does not fill the network; within one
machine it gains little.

A FILE - is standard input, of any length; it is called stdin at the receiver, or
as --name says, and may pause for any time. Receivers of earlier versions refuse it.

With --code it prints a code of ten digits, which the person at the receiver types:
cinnabar recv --code CODE. The code authenticates both ends, and the transfer is
encrypted. It is good for one try, for one FILE, and for ten minutes, in which send
waits for the receiver.

A size is a number with an optional unit: 4k and 4KiB are 4096 bytes, 4KB are
4000.`,
		Example: "  cinnabar recv --dir /tmp/in &\n  cinnabar send big.iso notes.txt localhost\n  cinnabar send --digest blake3 big.iso localhost\n  cinnabar send -r --preserve --exclude '*.o' src localhost\n  cinnabar send -r --update --delete photos localhost\n  tar c src | cinnabar send - --name src.tar localhost",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(cmd.Context(), args); err != nil {
				return err
			}
			if o.code {
				if err := o.checkCode(cmd); err != nil {
					return err
				}
			}
			return runSend(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.protocol, "protocol", "auto", "fast or basic; auto takes fast if the receiver has it")
	f.IntVar(&o.buffers, "buffers", 0, "buffers to ask the receiver for (default 8; basic has 1)")
	f.StringVar(&o.chunk, "chunk", "", "size of each buffer, 4k to 1g (default 512KiB, basic 10MiB)")
	f.IntVar(&o.lanes, "lanes", 1, "connections over which a file or a directory is spread, at most; 1 to 64")
	f.StringVar(&o.digest, "digest", "sha256", "digest by which the protocol fast compares whole files: sha256, blake3 (the receiver must have it too), or none")
	f.StringVar(&o.name, "name", "", "name of the file at the receiver, for one FILE or for standard input (default its own, or stdin)")
	f.BoolVar(&o.preserve, "preserve", false, "send modes and times of modification along")
	f.BoolVar(&o.code, "code", false, "print a one-time code, which recv --code CODE takes at the receiver; it authenticates both ends, and encrypts")
	o.registerTrees(f)
	o.registerSync(f)
	o.register(f, s)
	return cmd
}

// parse checks the options and the arguments before anything is connected.
func (o *sendOptions) parse(ctx context.Context, args []string) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if o.lanes < 1 || o.lanes > xfer.MaxLanes {
		return cli.Usagef("invalid --lanes %d: 1 to %d", o.lanes, xfer.MaxLanes)
	}
	o.sender = xfer.Sender{Window: o.buffers, Lanes: o.lanes, Timeout: o.timeout, Hashes: hashes()}
	if o.sender.Protocol, err = cli.ParseName("--protocol", o.protocol, xfer.Auto, xfer.Fast, xfer.Basic); err != nil {
		return err
	}
	if o.sender.Digest, err = cli.ParseName("--digest", o.digest, xfer.SHA256, digestBLAKE3, xfer.NoDigest); err != nil {
		return err
	}
	if o.sender.Protocol == xfer.Basic && o.lanes > 1 {
		return cli.Usagef("--lanes %d is for the fast protocol; --protocol basic has one connection", o.lanes)
	}
	if o.sender.Protocol == xfer.Basic && o.sender.Digest == digestBLAKE3 {
		return cli.Usagef("--digest %s is for the fast protocol; --protocol basic has no digest", o.sender.Digest)
	}
	if o.buffers < 0 || o.buffers > maxBuffers {
		return cli.Usagef("invalid --buffers %d: 1 to %d, 0 for the default", o.buffers, maxBuffers)
	}
	if o.chunk != "" {
		n, err := parseChunk("--chunk", o.chunk, minChunk, maxChunk)
		if err != nil {
			return err
		}
		if err := o.limit.checkChunk(n, o.timeout); err != nil {
			return err
		}
		o.sender.Chunk = int(n)
	} else if n := o.limit.chunk(unlimitedChunk); n < unlimitedChunk {
		o.sender.Chunk = int(n)
	}
	if err := errors.Join(o.checkTrees(o.sender.Protocol), o.checkSync(o.recursive, o.sender.Protocol)); err != nil {
		return err
	}
	o.preserve = o.preserve || o.update
	o.files = args[:len(args)-1]
	if err := o.checkName(o.files); err != nil {
		return err
	}
	if err := o.checkFiles(o.files); err != nil {
		return err
	}
	o.host, o.peers, err = peerAddrs(ctx, args[len(args)-1])
	return err
}

// checkFiles looks at every file before the first is sent: a list that cannot be
// sent whole is not begun.
func (o *sendOptions) checkFiles(paths []string) error {
	names := map[string]string{}
	for _, path := range paths {
		if path == standard {
			if err := o.claimName(names, path, o.streamName()); err != nil {
				return err
			}
			continue
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() && !o.recursive {
			return fmt.Errorf("open the file to send: %s is a directory, and send takes files; --recursive sends directories too", path)
		}
		if !o.takes(path) {
			_, f, err := xfer.OpenFile(path, false)
			if err != nil {
				return fmt.Errorf("open the file to send: %w", err)
			}
			cli.Shut(f)
		}
		if err := o.claimName(names, path, o.nameOf(path)); err != nil {
			return err
		}
	}
	return nil
}

// claimName refuses a name that another path has already.
func (o *sendOptions) claimName(names map[string]string, path, name string) error {
	if other, twice := names[name]; twice {
		return cli.Usagef("%s and %s would both be stored as %q; send them one by one to different directories", other, path, name)
	}
	names[name] = path
	return nil
}

// peerAddrs returns the host of HOST[:PORT] and its addresses, IPv4 first.
func peerAddrs(ctx context.Context, text string) (string, []netip.AddrPort, error) {
	host, port, err := hostPort(text)
	if err == nil && host == "" {
		err = fmt.Errorf("address %q: no host", text)
	}
	if err != nil {
		return "", nil, cli.Usagef("%w; the last argument is the receiver", err)
	}
	host, addrs, err := resolve(ctx, host, port)
	if err != nil {
		err = fmt.Errorf("receiver %s: %w; the last argument is the receiver, HOST or HOST:PORT", text, err)
	}
	return host, addrs, err
}

// resolve returns the host and its addresses, IPv4 first.
func resolve(ctx context.Context, host, port string) (string, []netip.AddrPort, error) {
	addrs, err := verbs.Resolve(ctx, net.JoinHostPort(host, port))
	if err != nil {
		return "", nil, err
	}
	return host, ipv4First(addrs), nil
}

// runSend sends the files in order, each over a connection of its own.
func runSend(ctx context.Context, o *sendOptions, s cli.Streams) (err error) {
	r := newReporter(ctx, sendWords, o.json, s)
	if o.dryRun {
		if err := o.list(ctx, r); err != nil || !o.remove {
			return err
		}
	}
	if o.code {
		if err := o.meet(ctx, r); err != nil {
			return err
		}
	}
	dev, err := o.openDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()); o.stop() }()
	if err := checkMessageSize(dev, o.sender.Chunk); err != nil {
		return err
	}
	t := &sending{o: o, dev: dev, r: r, peers: o.peers, limit: newBucket(o.limit.rate), in: s.In}
	if o.dryRun {
		return o.listRemovals(ctx, t)
	}
	t.r.outlook = o.newOutlook()
	return t.all(ctx)
}

// checkMessageSize refuses a chunk that the device cannot send in one piece.
func checkMessageSize(dev *verbs.Device, chunk int) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	for _, p := range attr.Ports {
		if uint64(chunk) > p.MaxMsgSize {
			return cli.Usagef("invalid --chunk: port %d of device %s sends messages of at most %s", p.Num, attr.Name, cli.SizeText(int64(p.MaxMsgSize)))
		}
	}
	return nil
}

// sending is one run of send.
type sending struct {
	o     *sendOptions
	dev   *verbs.Device
	r     *reporter
	peers []netip.AddrPort // only the one that answered, once one has
	limit *bucket          // of all files; nil: none
	in    io.Reader        // standard input
}

// newOutlook returns the outlook of the command. It has all files if there are several, and none is a directory, because the size of a directory
// is not known before its turn.
func (o *sendOptions) newOutlook() *outlook {
	all := &outlook{}
	if len(o.files) == 1 {
		return all
	}
	for _, path := range o.files {
		info, err := os.Stat(path)
		if err != nil || info.IsDir() {
			return &outlook{}
		}
		all.size += info.Size()
	}
	all.files = int64(len(o.files))
	return all
}

// all sends every file. A failure that concerns one file only does not end the others.
func (t *sending) all(ctx context.Context) error {
	failed := 0
	for n, path := range t.o.files {
		begun := t.r.outlook.bytes()
		err := t.one(ctx, path)
		t.r.outlook.finish(begun, path)
		if err == nil {
			continue
		}
		if len(t.o.files) == 1 && ctx.Err() == nil {
			return err
		}
		failed++
		t.r.notef("%s: %s", path, cli.Printable(withoutName(err)))
		if ctx.Err() != nil || !concernsFile(err) {
			failed += len(t.o.files) - n - 1
			break
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d files were not sent", failed, len(t.o.files))
	}
	return nil
}

// withoutName is the text of a failure on one line, without the file's name, for a line that begins with its path.
func withoutName(err error) string {
	text := cli.OneLine(err)
	if x, ok := errors.AsType[*xfer.Error](err); ok && x.Name != "" {
		unnamed := *x
		unnamed.Name = ""
		text = strings.Replace(text, cli.OneLine(x), cli.OneLine(&unnamed), 1)
	}
	return text
}

// one sends one file and prints how it went.
func (t *sending) one(ctx context.Context, path string) (err error) {
	if path == standard {
		return t.stdin(ctx)
	}
	if t.o.takes(path) {
		return t.tree(ctx, path)
	}
	src, f, err := xfer.OpenFile(path, t.o.preserve)
	if err != nil {
		return fmt.Errorf("open the file to send: %w", err)
	}
	defer cli.Shut(f)
	if t.o.name != "" && len(t.o.files) == 1 {
		src.Name = t.o.name
	}
	src.Choice = t.o.choice()
	res, err := t.reach(ctx, limitSource(ctx, src, t.limit))
	if err != nil {
		err = t.r.explain(err)
	}
	return errors.Join(err, t.r.finished(path, res, err))
}

// reach sends to the first address of the receiver that answers.
func (t *sending) reach(ctx context.Context, src xfer.Source) (res xfer.Result, err error) {
	var errs []error
	for n, peer := range t.peers {
		sender := t.o.sender
		if strings.HasSuffix(src.Name, "/") { // a tree
			sender.Protocol = xfer.Fast
		}
		if !t.o.dryRun {
			sender.Progress = func() xfer.Progress { return t.r.watch() }
		}
		if res, err = sender.Send(ctx, t.dev, peer, src); err == nil || !unreachable(err) {
			t.peers = t.peers[n : n+1]
			return res, err
		}
		errs = append(errs, err)
	}
	return res, errors.Join(errs...)
}

// unreachable reports whether no receiver has answered, so that another address
// may be tried.
func unreachable(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EAFNOSUPPORT, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// concernsFile reports whether a failure says nothing about the files that follow.
func concernsFile(err error) bool {
	x, ok := errors.AsType[*xfer.Error](err)
	if !ok {
		return true // the file could not be opened
	}
	switch x.Code {
	case xfer.CodeName, xfer.CodeExists, xfer.CodeStorage, xfer.CodeSource, xfer.CodeChanged, xfer.CodeCorrupt:
		return true
	default:
		return false
	}
}
