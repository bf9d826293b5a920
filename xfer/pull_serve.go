package xfer

import (
	"context"
	"io"
	"log/slog"

	"cinnabar/internal/audit"
	"cinnabar/verbs"
)

// pullServer sends the file that a puller asks for: it takes the request, opens the file, and is the client of the fast protocol then.
//
//	wait for the request    the puller speaks first
//	opening                 the file is opened, then ATTR and OPEN are sent
//	sending                 see fastClient
type pullServer struct {
	*fastClient
	phase pullPhase
	parts requestParts
	// src is set by the disk's worker before evOpened, and read after it.
	src Source
}

type pullPhase uint8

const (
	pullAwaitsRequest pullPhase = iota
	pullOpening
	pullSending
)

func (p *pullServer) awaits() string {
	switch p.phase {
	case pullAwaitsRequest:
		return "the request"
	case pullOpening:
		return "the file to be opened"
	default:
		return p.fastClient.awaits()
	}
}

// fileSize is the size of the file, for the observer.
func (p *pullServer) fileSize() int64 { return p.src.Size }

func (p *pullServer) step(ev event, acts []action) []action {
	if p.phase == pullSending {
		return p.fastClient.step(ev, acts)
	}
	p.out.reset()
	switch ev.kind {
	case evReceived:
		return p.requested(ev, acts)
	case evOpened:
		if ev.err != nil {
			return p.abort(acts, ev.err)
		}
		p.phase = pullSending
		p.name, p.size = p.src.Name, p.src.Size
		acts = p.send(acts, attrMessage(p.src.Meta), none)
		return p.send(acts, fastMessage{kind: fastOpen, number: uint64(p.size), tail: []byte(p.name)}, none)
	case evEnded:
		return p.end(acts, lostFailure(ev.err, p.awaits()))
	case evStopped:
		return p.abort(acts, ev.err)
	default:
		return acts
	}
}

// requested processes a message of the puller before the file is opened.
func (p *pullServer) requested(ev event, acts []action) []action {
	m, err := fastReceived(ev, "puller")
	switch {
	case err != nil:
		return p.abort(acts, err)
	case m.kind == fastFailed:
		return p.end(acts, peerFailure(m))
	case m.kind != fastRequest || p.phase != pullAwaitsRequest:
		return p.abort(acts, failf(CodeProtocol, "the puller sent %s while the server waited for %s", fastNames[m.kind], p.awaits()))
	}
	acts = append(acts, action{kind: actReceive, slot: ev.slot})
	whole, err := p.parts.add(m)
	if err != nil {
		return p.abort(acts, err)
	}
	if !whole {
		return acts
	}
	p.phase = pullOpening
	return append(acts, action{kind: actOpen, msg: p.out.sent(append(p.out.room(), p.parts.r.Path...))})
}

// pulled does the jobs of the disk for a server of files. One goroutine uses it.
type pulled struct {
	m      *pullServer
	open   func(FileRequest) (Source, io.Closer, error)
	reader reader
	closer io.Closer // of the source; nil: nothing to close
}

func (p *pulled) do(a action) event {
	if a.kind != actOpen {
		return p.reader.do(a)
	}
	src, closer, err := p.open(p.m.parts.r)
	p.closer = closer
	if err == nil {
		switch {
		case src.Stream != nil || src.Size < 0 || src.Data == nil:
			err = failf(CodeSource, "the server's Files returned a source that has no size")
		default:
			err = checkWireName(src.Name)
		}
	}
	if err != nil {
		return event{kind: evOpened, err: classed(CodeSource, err)}
	}
	p.m.src, p.reader.src = src, src
	return event{kind: evOpened}
}

// close closes the source. The worker has stopped.
func (p *pulled) close() error {
	if p.closer == nil {
		return nil
	}
	return p.closer.Close()
}

// serveFile accepts the request of a puller and carries the transfer out with the objects of l. It returns when l is not in use any more.
func (h *host) serveFile(ctx context.Context, req *verbs.ConnRequest, p *place, l *resources, a agreement, why string, res *Result) (watcher Progress, err error) {
	m := &pullServer{fastClient: newFastClient(a, "")}
	opening, end := context.WithCancel(ctx)
	defer end()
	work := &pulled{m: m, reader: reader{buf: l.data.Bytes(), chunk: a.chunk, checked: true},
		open: func(r FileRequest) (Source, io.Closer, error) {
			if err := p.named(); err != nil {
				return Source{}, nil, err
			}
			return h.Files(opening, req.RemoteAddr(), r)
		}}
	s := newSession(l, m, a, h.Hashes, work.do)
	s.timeout, s.opening = h.timeout, openTimeout
	if h.Trace != nil {
		s.trace = h.Trace()
	}
	if h.Progress != nil {
		s.progress = h.Progress()
	}
	if err = h.connect(ctx, req, s); err == nil {
		h.trail.Record(audit.Accepted, "pull", hostOf(req), agreementAttrs("", req.RemoteAddr(), &a, why)...)
		s.begin(*res, false)
		*res, err = s.run(ctx)
	}
	end() // because close waits for the worker, and so for Files
	s.close()
	if cerr := work.close(); cerr != nil {
		h.log.LogAttrs(ctx, slog.LevelWarn, "source not closed", slog.String("file", res.Name), slog.Any("err", cerr))
	}
	return s.observer(), err
}
