package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/rmem"
)

// provider is the provider of the peer's engine that lends memory.
const provider = 9

// remoteMemory allocates memory at the peer, writes the data to it and reads it back, round by round, and frees it. The
// peer's program has no part in the transfers.
func (d *session) remoteMemory(ctx context.Context, peer *cinnabar.Endpoint, protocol string) (err error) {
	c, err := rmem.Dial(ctx, peer.Provider(provider))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r, err := c.Alloc(ctx, roundLen)
	if err != nil {
		return err
	}
	written, read, err := d.throughRegion(ctx, r)
	if err != nil {
		return err
	}
	if err := r.Free(ctx); err != nil {
		return err
	}
	if err := r.Free(ctx); !errors.Is(err, rmem.ErrFreed) {
		return fmt.Errorf("verification failed: a second free says %q", fmt.Sprint(err))
	}
	written.step, read.step = "memory write, "+protocol, "memory read, "+protocol
	written.verified = "allocated " + cli.SizeText(r.Size())
	read.verified = "equal; freed"
	for _, row := range []*row{&written, &read} {
		row.bytes, row.rate = d.src.Size, fmt.Sprintf("%.0f MiB/s", cli.MiBPerSecond(d.src.Size, row.took))
		d.rows = append(d.rows, *row)
	}
	return nil
}

// throughRegion moves the data to a region and back.
func (d *session) throughRegion(ctx context.Context, region *rmem.Region) (written, read row, err error) {
	r, err := d.src.open()
	if err != nil {
		return written, read, err
	}
	defer cli.Shut(r)
	arrived := sha256.New()
	for left := d.src.Size; left > 0; {
		b := d.data.Bytes()[:min(left, roundLen)]
		if err := d.src.fill(r, b); err != nil {
			return written, read, err
		}
		if err := written.inChunks(ctx, b, region.WriteAtContext); err != nil {
			return written, read, err
		}
		clear(b)
		if err := read.inChunks(ctx, b, region.ReadAtContext); err != nil {
			return written, read, err
		}
		arrived.Write(b)
		left -= int64(len(b))
	}
	if [32]byte(arrived.Sum(nil)) != d.digest {
		return written, read, fmt.Errorf("verification failed: the data read back has SHA-256 %x, the data had %x before; did %s change meanwhile?", arrived.Sum(nil), d.digest, d.src.name())
	}
	return written, read, nil
}

// inChunks moves b in pieces, and counts and times them.
func (row *row) inChunks(ctx context.Context, b []byte, move func(context.Context, []byte, int64) (int, error)) error {
	start := time.Now()
	for off, n := range chunks(len(b), chunkLen) {
		if _, err := move(ctx, b[off:off+n], int64(off)); err != nil {
			return err
		}
		row.operations++
	}
	row.took += time.Since(start)
	return nil
}
