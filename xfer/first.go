package xfer

import (
	"context"
	"sync"

	"cinnabar/verbs"
)

// first lets only one transfer of a receiver go on: the first one that has made its file. A nil *first lets all go on.
type first struct {
	stop context.CancelFunc // makes the receiver accept no more requests

	mu sync.Mutex
	// the request of the first transfer; nil: no file was made yet
	// +checklocks:mu
	chosen *verbs.ConnRequest
	// the requests that are served, each with the function that cancels it
	// +checklocks:mu
	under map[*verbs.ConnRequest]context.CancelCauseFunc
	// result of the chosen request
	// +checklocks:mu
	res Result
	// +checklocks:mu
	err error
}

// errNotFirst returns the error of each transfer but the first.
func errNotFirst() error {
	return failf(CodeBusy, "this receiver takes one file, and another sender's has begun")
}

// serve serves a request until its end, or until another one is chosen.
func (f *first) serve(ctx context.Context, h *host, req *verbs.ConnRequest, p *place) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if isLane(req.PrivateData()) { // it ends with its transfer
		_, _ = h.serve(ctx, req, p) // the result is that of the transfer
		return
	}
	f.mu.Lock()
	late := f.chosen != nil
	if !late {
		f.under[req] = cancel
	}
	f.mu.Unlock()
	if late {
		_ = h.refuse(req, errNotFirst()) // Done receives the error
		return
	}
	res, err := h.serve(ctx, req, p)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.under, req)
	if f.chosen == req {
		f.res, f.err = res, err
		f.stop()
	}
}

// open calls do, which makes the file of a request. If do succeeds, open chooses the request and cancels the others. The receiver accepts further requests for the lanes of the
// chosen transfer only, if it has several.
func (f *first) open(req *verbs.ConnRequest, lanes bool, do func() (File, error)) (File, error) {
	if f == nil {
		return do()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.chosen != nil {
		return nil, errNotFirst()
	}
	file, err := do()
	if err != nil {
		return nil, err
	}
	f.chosen = req
	if !lanes {
		f.stop()
	}
	for other, cancel := range f.under {
		if other != req {
			cancel(errNotFirst())
		}
	}
	return file, nil
}

// is reports whether req is the chosen request.
func (f *first) is(req *verbs.ConnRequest) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.chosen == req
}

// outcome returns the result of the chosen request, and false if none was chosen.
func (f *first) outcome() (Result, error, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.res, f.err, f.chosen != nil
}
