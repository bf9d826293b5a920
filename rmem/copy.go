package rmem

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"cinnabar"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
)

// copy copies from another region, of this server or of another one.
func (s *Server) copy(ctx context.Context, q *request, r *response, by *caller) {
	to := s.use(r, q)
	if to == nil {
		return
	}
	if len(q.Source) == 0 {
		from := s.source(r, q)
		if from == nil {
			return
		}
		copyWithin(r, to, from, q)
		return
	}
	if s.cfg.CopyFrom == nil {
		r.Status = uint32(statusElsewhere)
		return
	}
	var source cinnabar.BulkHandle
	owner, err := (*cinnabar.Endpoint)(nil), source.UnmarshalBinary(q.Source)
	if err == nil {
		owner, err = source.Owner(s.e)
	}
	if err != nil {
		r.Status = uint32(statusUnknown)
		return
	}
	if !s.cfg.CopyFrom(owner.String()) {
		r.Status = uint32(statusElsewhere)
		return
	}
	if err := by.account.Take(hostquota.Pulls, 1); err != nil {
		s.trail.Record(audit.Refused, "too many copies from other servers", by.account.Host(), slog.Any("error", err))
		r.Status = uint32(statusBusy)
		return
	}
	defer by.account.Give(hostquota.Pulls, 1)
	s.fetch(ctx, q, r, to, source.On(owner))
}

// fetch copies from another server, through a buffer of this one: while it waits for that server, this region can be freed.
func (s *Server) fetch(ctx context.Context, q *request, r *response, to *entry, from cinnabar.RemoteBulk) {
	if to.use(r, q.Offset, q.Size, func([]byte) {}); r.Status != 0 { // before anything is fetched
		return
	}
	buf := make([]byte, min(q.Size, strictChunk))
	for done := int64(0); done < q.Size && r.Status == 0; {
		part := buf[:min(int64(len(buf)), q.Size-done)]
		if n, err := readWithin(ctx, s.stall, from, part, q.SourceOffset+done); err != nil || n != len(part) {
			r.Status = uint32(statusServer)
			s.log.Debug("copy from another server fails", "server", from.Endpoint().String(), "error", err)
			return
		}
		to.use(r, q.Offset+done, int64(len(part)), func(b []byte) { copy(b, part) })
		done += int64(len(part))
	}
}

// readWithin reads from another server, for which it waits limit at most.
func readWithin(ctx context.Context, limit time.Duration, from cinnabar.RemoteBulk, p []byte, off int64) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("%v has not answered a read of %d bytes for %v, which ends the copy: check that this server runs, and copy again", from.Endpoint(), len(p), limit))
	defer cancel()
	return from.ReadAt(ctx, p, off)
}

// copyWithin copies between two regions, or parts of one, which may overlap. It copies in pieces, because a region that is
// claimed waits for accesses that are under way, and all clients wait for the claim.
func copyWithin(r *response, to, from *entry, q *request) {
	to.use(r, q.Offset, q.Size, func([]byte) {})
	if r.Status == 0 {
		from.use(r, q.SourceOffset, q.Size, func([]byte) {})
	}
	backward := to == from && q.Offset > q.SourceOffset // so that no piece is overwritten before it is copied
	for done := int64(0); done < q.Size && r.Status == 0; {
		n := min(strictChunk, q.Size-done)
		at := done
		if backward {
			at = q.Size - done - n
		}
		copyPiece(r, to, from, q.Offset+at, q.SourceOffset+at, n)
		done += n
	}
}

// copyPiece copies n bytes. Both regions are held, the one with the smaller number first, so that two copies cannot wait for
// each other through an end that wants the lock.
func copyPiece(r *response, to, from *entry, off, srcOff, n int64) {
	if to == from {
		to.use(r, off, n, func(dst []byte) { copy(dst, to.mem.Bytes()[srcOff:srcOff+n]) })
		return
	}
	if to.id < from.id {
		to.use(r, off, n, func(dst []byte) {
			from.use(r, srcOff, n, func(src []byte) { copy(dst, src) })
		})
		return
	}
	from.use(r, srcOff, n, func(src []byte) {
		to.use(r, off, n, func(dst []byte) { copy(dst, src) })
	})
}
