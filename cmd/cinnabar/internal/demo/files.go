package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
	"cinnabar/xfer"
)

// After the single operations the demonstration transfers the data as a file,
// in both directions, with the code of send and recv. Both sides know the
// order, and send each other the rest over the exchange:
//
//	parent                              peer
//	  | -- where it receives -------------> |
//	  | <------------- where it receives -- |
//	  |     ... and for each protocol:      |
//	  | == the file ======================> |
//	  | <---------------------- its report -- |
//	  | <====================== the file == |
var protocols = []xfer.Protocol{xfer.Basic, xfer.Fast}

// fileName is the name of the file at the receiver.
const fileName = "demo-data"

// fileReport is the peer's report on a file that it was to receive.
type fileReport struct {
	Digest [32]byte `json:"digest"`
	Error  string   `json:"error,omitempty"`
}

// fileExchange is one side of the transfers. Files go to a directory that is
// removed at the end. The data is a file too before the first transfer, so that
// the time of a transfer has no random data to make.
type fileExchange struct {
	dev    *verbs.Device
	src    source
	path   string // the directory; what arrives is in received
	source string // file with the data
	dir    *xfer.Dir
	l      *verbs.Listener
	peer   netip.AddrPort // where the other side receives
}

// received returns the path of the directory for files that arrive.
func (e *fileExchange) received() string { return filepath.Join(e.path, "received") }

// newFileExchange makes the directory and the file with the data, and listens where the other process reaches it.
func newFileExchange(ctx context.Context, dev *verbs.Device, src source) (_ *fileExchange, err error) {
	e := &fileExchange{dev: dev, src: src}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.path, err = os.MkdirTemp("", "cinnabar-demo-"); err != nil {
		return nil, fmt.Errorf("make a directory for the transfers: %w", err)
	}
	if e.source, err = e.makeSource(); err != nil {
		return nil, err
	}
	if err = os.Mkdir(e.received(), 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for the transfers: %w", err)
	}
	if e.dir, err = xfer.OpenDir(ctx, e.received(), xfer.DirOptions{}); err != nil {
		return nil, err
	}
	at, err := loopbackOf(dev)
	if err != nil {
		return nil, err
	}
	e.l, err = verbs.Listen(dev, at)
	return e, err
}

// makeSource returns the path of a file with the data. It writes random data to one.
func (e *fileExchange) makeSource() (path string, err error) {
	if e.src.Path != "" {
		return e.src.Path, nil
	}
	r, err := e.src.open()
	if err != nil {
		return "", err
	}
	defer cli.Shut(r)
	path = filepath.Join(e.path, fileName)
	f, err := os.Create(path)
	if err != nil {
		return "", fmt.Errorf("make a file of the data: %w", err)
	}
	_, err = io.CopyN(f, r, e.src.Size)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("make a file of the data: %w", err)
	}
	return path, nil
}

// close removes everything.
func (e *fileExchange) close() error {
	var errs []error
	if e.l != nil {
		errs = append(errs, e.l.Close())
	}
	if e.dir != nil {
		errs = append(errs, e.dir.Close())
	}
	if e.path != "" {
		errs = append(errs, os.RemoveAll(e.path))
	}
	return errors.Join(errs...)
}

// send sends the data once. It does not ask for a digest: the demonstration
// compares the files themselves.
func (e *fileExchange) send(ctx context.Context, p xfer.Protocol) (xfer.Result, error) {
	f, err := os.Open(e.source)
	if err != nil {
		return xfer.Result{}, fmt.Errorf("open the data: %w", err)
	}
	defer cli.Shut(f)
	s := xfer.Sender{Protocol: p, Digest: xfer.NoDigest}
	return s.Send(ctx, e.dev, e.peer, xfer.Source{Name: fileName, Data: f, Size: e.src.Size})
}

// receive takes the file once and returns the digest of the stored file. It removes the file, because a transfer that replaced it
// would take the time to free its memory.
func (e *fileExchange) receive(ctx context.Context) (xfer.Result, [32]byte, error) {
	r := xfer.Receiver{Open: e.dir.Open}
	res, err := r.ServeOne(ctx, e.l)
	if err != nil {
		return res, [32]byte{}, err
	}
	path := filepath.Join(e.received(), fileName)
	digest, err := fileDigest(path)
	return res, digest, errors.Join(err, os.Remove(path))
}

// fileDigest is the SHA-256 of a file.
func fileDigest(path string) (digest [32]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return digest, err
	}
	defer cli.Shut(f)
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return digest, err
	}
	return [32]byte(sum.Sum(nil)), nil
}

// files is the parent's part of the transfers.
func (d *session) files(ctx context.Context, dev *verbs.Device, x *link.Exchange) (err error) {
	e, err := newFileExchange(ctx, dev, d.src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := x.Send(e.l.Addr()); err != nil {
		return err
	}
	if err := x.Receive(ctx, &e.peer); err != nil {
		return err
	}
	for _, p := range protocols {
		if err := d.fileThere(ctx, e, x, p); err != nil {
			return fmt.Errorf("file transfer, %s protocol: %w", p, err)
		}
		if err := d.fileBack(ctx, e, p); err != nil {
			return fmt.Errorf("file transfer back, %s protocol: %w", p, err)
		}
	}
	return nil
}

// fileThere sends the file to the peer.
func (d *session) fileThere(ctx context.Context, e *fileExchange, x *link.Exchange, p xfer.Protocol) error {
	res, err := e.send(ctx, p)
	if err != nil {
		return err
	}
	var report fileReport
	if err := x.Receive(ctx, &report); err != nil {
		return err
	}
	if report.Error != "" {
		return fmt.Errorf("the peer failed: %s", report.Error)
	}
	return d.fileRow("there", p, res, report.Digest)
}

// fileBack receives it from the peer.
func (d *session) fileBack(ctx context.Context, e *fileExchange, p xfer.Protocol) error {
	res, digest, err := e.receive(ctx)
	if err != nil {
		return err
	}
	return d.fileRow("back", p, res, digest)
}

// fileRow compares the digest of the file that arrived with that of the passes before,
// and notes the transfer.
func (d *session) fileRow(way string, p xfer.Protocol, res xfer.Result, arrived [32]byte) error {
	if res.Protocol != p {
		return fmt.Errorf("the %s protocol was used", res.Protocol)
	}
	if arrived != d.digest {
		return fmt.Errorf("verification failed: the file that arrived has SHA-256 %x, the data had %x before; did %s change meanwhile?", arrived, d.digest, d.src.name())
	}
	d.rows = append(d.rows, row{
		step: fmt.Sprintf("file, %s, %s", p, way), operations: res.Chunks, bytes: res.Size, took: res.Duration,
		rate:     fmt.Sprintf("%.0f MiB/s", cli.MiBPerSecond(res.Size, res.Duration)),
		verified: equal,
	})
	return nil
}

// files is the peer's part.
func (p *peer) files(ctx context.Context, dev *verbs.Device, x *link.Exchange) (err error) {
	e, err := newFileExchange(ctx, dev, p.src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := x.Receive(ctx, &e.peer); err != nil {
		return err
	}
	if err := x.Send(e.l.Addr()); err != nil {
		return err
	}
	for _, protocol := range protocols {
		var report fileReport
		if _, report.Digest, err = e.receive(ctx); err != nil {
			report.Error = cli.OneLine(err)
		}
		if err := errors.Join(err, x.Send(report)); err != nil {
			return err
		}
		if _, err := e.send(ctx, protocol); err != nil {
			return err
		}
	}
	return nil
}
