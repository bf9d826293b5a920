package lend

import (
	"context"
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/rmem"
)

const (
	chunkLen = 4 << 20 // bytes of a file that are moved at a time
	maxOnce  = 1 << 30 // bytes that are read of a region that can be read once: a server can say that it is of any size
)

// rangeOptions are the options of mem put and mem get.
type rangeOptions struct {
	offset int64
	size   int64 // of mem get; -1: to the end
	output string
	caller cli.Caller
}

func newPut(s cli.Streams) *cobra.Command {
	o := &rangeOptions{}
	cmd := &cobra.Command{
		Use:   "put TOKEN [FILE]",
		Short: "Write FILE, or standard input, into a region",
		Long: `put writes the bytes of FILE into the region of TOKEN, which is the token or the handle that
alloc has printed. FILE may be a pipe. Without FILE, and for "-", put reads standard input.`,
		Example: "  cinnabar mem put $TOKEN notes.txt\n  date | cinnabar mem put --offset 100 $TOKEN",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from := s.In
			if len(args) == 2 && args[1] != "-" {
				f, err := cli.OpenInput(cmd.Context(), args[1])
				if err != nil {
					return err
				}
				defer cli.Shut(f)
				from = f
			}
			return withRegion(cmd.Context(), args[0], &o.caller, func(ctx context.Context, r *rmem.Region) error {
				if err := o.fits(r, from); err != nil {
					return err
				}
				return o.put(ctx, r, from)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&o.offset, "offset", 0, "where in the region to begin, in bytes")
	o.caller.Register(f, s, defaultTimeout, "how long all of it may take")
	return cmd
}

// fits returns an error if from is a regular file that is longer than the region from --offset on, so that put writes nothing of
// it. The length of other input is unknown before it ends.
func (o *rangeOptions) fits(r *rmem.Region, from io.Reader) error {
	if o.offset < 0 || o.offset > r.Size() {
		return cli.Usagef("--offset %d: the region has %d bytes", o.offset, r.Size())
	}
	f, ok := from.(*os.File)
	if !ok {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	at, err := f.Seek(0, io.SeekCurrent) // standard input may begin in the middle of a file
	if err != nil {
		return err
	}
	if n := info.Size() - at; n > r.Size()-o.offset {
		return fmt.Errorf("%d bytes do not fit: the region has %d from --offset %d on; nothing was written", n, r.Size()-o.offset, o.offset)
	}
	return nil
}

// put writes all of from to the region. If input of unknown length does not fit, put writes the part that fits and returns an error.
func (o *rangeOptions) put(ctx context.Context, r *rmem.Region, from io.Reader) error {
	buf := make([]byte, chunkLen)
	for at := o.offset; ; {
		n, err := io.ReadFull(from, buf)
		if n > 0 {
			written, err := r.WriteAtContext(ctx, buf[:n], at)
			if err == io.ErrShortWrite { //nolint:errorlint // it comes as it is
				return fmt.Errorf("the input is longer than the %d bytes of the region from --offset %d on, which were written", r.Size()-o.offset, o.offset)
			}
			if err != nil {
				return err
			}
			at += int64(written)
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

func newGet(s cli.Streams) *cobra.Command {
	o := &rangeOptions{}
	cmd := &cobra.Command{
		Use:   "get TOKEN",
		Short: "Read a region to standard output, or to a file",
		Long: `get prints the bytes of the region of TOKEN, which is the token or the handle that alloc has
printed, as they are, without a line break behind them. On a terminal it prints control
characters as \x1b, for example, because a terminal would act upon them.`,
		Example: "  cinnabar mem get $TOKEN\n  cinnabar mem get --offset 100 --size 28 --output part $TOKEN",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRegion(cmd.Context(), args[0], &o.caller, func(ctx context.Context, r *rmem.Region) error {
				return o.get(ctx, r, s.Out)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&o.offset, "offset", 0, "where in the region to begin, in bytes")
	f.Int64Var(&o.size, "size", -1, "how many bytes to read; -1 reads to the end")
	f.StringVarP(&o.output, "output", "o", "", "file to write to, which must not exist")
	o.caller.Register(f, s, defaultTimeout, "how long all of it may take")
	return cmd
}

func (o *rangeOptions) get(ctx context.Context, r *rmem.Region, to io.Writer) (err error) {
	if o.offset < 0 || o.offset > r.Size() || o.size > r.Size()-o.offset || o.size < -1 {
		return cli.Usagef("--offset %d --size %d: the region has %d bytes", o.offset, o.size, r.Size())
	}
	if o.output != "" {
		f, err := os.OpenFile(o.output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		if err := o.read(ctx, r, f); err != nil {
			cli.Shut(f)
			return err
		}
		return f.Close()
	}
	if cli.IsTerminal(to) {
		to = escaper{to}
	}
	return o.read(ctx, r, to)
}

// escaper writes line breaks, tabs and printable characters as they are, and all other bytes in the form \x1b, because a terminal might act upon them. It also
// escapes a character that two calls of Write divide.
type escaper struct{ w io.Writer }

func (e escaper) Write(b []byte) (int, error) {
	var out []byte
	for rest := b; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			out = append(out, rest[:n]...)
		} else {
			for _, c := range rest[:n] {
				out = fmt.Appendf(out, `\x%02x`, c)
			}
		}
		rest = rest[n:]
	}
	if _, err := e.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (o *rangeOptions) read(ctx context.Context, r *rmem.Region, to io.Writer) error {
	end := r.Size()
	if o.size >= 0 {
		end = o.offset + o.size
	}
	size, err := pieceLen(r.Once(), end-o.offset)
	if err != nil {
		return err
	}
	buf := make([]byte, size)
	for at := o.offset; at < end; {
		n, err := r.ReadAtContext(ctx, buf[:min(int64(len(buf)), end-at)], at)
		if err != nil {
			return err
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// pieceLen is how many of n bytes are read at a time: all, where there is no second time.
func pieceLen(once bool, n int64) (int64, error) {
	switch {
	case !once:
		return min(chunkLen, n), nil
	case n > maxOnce:
		return 0, cli.Usagef("the region can be read once, so it is read into memory: %d bytes are over the limit of %d; --offset and --size say which you need", n, maxOnce)
	}
	return n, nil
}
