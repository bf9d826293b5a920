package rmem

import (
	"context"

	"cinnabar"
)

// copy copies from another region, of this server or of another one.
func (s *Server) copy(ctx context.Context, q *request, r *response) {
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
	var source cinnabar.BulkHandle
	owner, err := (*cinnabar.Endpoint)(nil), source.UnmarshalBinary(q.Source)
	if err == nil {
		owner, err = source.Owner(s.e)
	}
	if err != nil {
		r.Status = uint32(statusUnknown)
		return
	}
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
		if n, err := from.ReadAtContext(ctx, part, q.SourceOffset+done); err != nil || n != len(part) {
			r.Status = uint32(statusServer)
			s.log.Debug("copy from another server fails", "server", from.Endpoint().String(), "error", err)
			return
		}
		to.use(r, q.Offset+done, int64(len(part)), func(b []byte) { copy(b, part) })
		done += int64(len(part))
	}
}

// copyWithin copies between two regions, or parts of one, which may overlap. Both are held, the one with the smaller
// number first, so that two copies cannot wait for each other through an end that wants the lock.
func copyWithin(r *response, to, from *entry, q *request) {
	if to == from {
		to.use(r, q.Offset, q.Size, func(dst []byte) {
			if q.SourceOffset < 0 || q.SourceOffset > to.size-q.Size {
				r.Status, r.Limit = uint32(statusRange), to.size
				return
			}
			copy(dst, to.mem.Bytes()[q.SourceOffset:q.SourceOffset+q.Size])
		})
		return
	}
	var dst, src []byte
	first, second := func(f func([]byte)) { to.use(r, q.Offset, q.Size, f) }, func(f func([]byte)) { from.use(r, q.SourceOffset, q.Size, f) }
	if to.id > from.id {
		first, second = second, first
	}
	first(func(a []byte) {
		second(func(b []byte) {
			if dst, src = a, b; to.id > from.id {
				dst, src = b, a
			}
			copy(dst, src)
		})
	})
}
