package balance

import (
	"context"
	"errors"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// Call calls r at a server that the Client chooses.
//
// The call is sent to another server if the first one has refused it before a handler has begun: it is draining, or has too many requests. If r is declared
// with [native.Idempotent], it is also sent again if a handler may have run: the server is lost, or its handler answers codes.Again or codes.Draining;
// and it is hedged (Config.Hedge). A call is sent at most Config.Attempts times, and once more by a hedge. Each repetition, except after a refusal of a
// draining server, and each hedge takes a token of the budget (Config.RetryRatio), and does not happen if the budget has none.
//
// ctx bounds all of this. When Call returns, no attempt is under way any more. The error is that of the last attempt.
func Call[In, Out any](ctx context.Context, c *Client, r *native.RPC[In, Out], in In) (Out, error) {
	return do(ctx, c, r.Idempotent(), func(ctx context.Context, to cinnabar.Target) (Out, error) { return r.Call(ctx, to, in) })
}

// attempts is the state of one call.
type attempts struct {
	c          *Client
	idempotent bool

	mu sync.Mutex
	// +checklocks:mu
	tried map[*server]bool
}

// do makes a call; attempt makes one attempt of it.
func do[Out any](ctx context.Context, c *Client, idempotent bool, attempt func(context.Context, cinnabar.Target) (Out, error)) (Out, error) {
	c.budget.deposit()
	a := &attempts{c: c, idempotent: idempotent}
	if !idempotent || c.cfg.Hedge == 0 {
		return repeat(ctx, a, c.cfg.Attempts, attempt)
	}
	return hedge(ctx, a, attempt)
}

// repeat makes up to most attempts, each at another server if one is ready.
func repeat[Out any](ctx context.Context, a *attempts, most int, attempt func(context.Context, cinnabar.Target) (Out, error)) (out Out, err error) {
	for n, pause := 1, repeatPause; ; n, pause = n+1, min(2*pause, lastPause) {
		s, unready := a.acquire(ctx)
		if unready != nil {
			if err == nil {
				err = unready
			}
			return out, err
		}
		out, err = once(ctx, a.c, s, attempt)
		if err == nil || n >= most || ctx.Err() != nil || !a.repeatable(err) {
			return out, err
		}
		if stateAfter(err) == draining {
			continue // at once, because another server has room for the call
		}
		if !a.c.budget.withdraw() || !sleep(ctx, jitter(pause)) {
			return out, err
		}
	}
}

// once makes one attempt. The server is released if the attempt panics, too.
func once[Out any](ctx context.Context, c *Client, s *server, attempt func(context.Context, cinnabar.Target) (Out, error)) (out Out, err error) {
	defer func() { s.release(err) }()
	return attempt(ctx, s.target)
}

// hedge makes attempts, and one more at another server when there is no response after Config.Hedge. It returns when both have ended.
func hedge[Out any](ctx context.Context, a *attempts, attempt func(context.Context, cinnabar.Target) (Out, error)) (Out, error) {
	type outcome struct {
		out Out
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan outcome, 2)
	var running sync.WaitGroup
	defer running.Wait() // the loser uses the arguments until it has ended
	defer cancel()
	start := func(most int) {
		running.Go(func() {
			out, err := repeat(ctx, a, most, attempt)
			results <- outcome{out, err}
		})
	}
	start(a.c.cfg.Attempts)
	timer := time.NewTimer(a.c.cfg.Hedge)
	defer timer.Stop()
	unfinished := 1 // goroutines of start without a result
	for {
		var r outcome
		hedgeDue := false
		cinnabar.Block(ctx, func() {
			select {
			case r = <-results:
			case <-timer.C:
				hedgeDue = true
			}
		})
		switch {
		case hedgeDue:
			if a.spare() && a.c.budget.withdraw() {
				unfinished++
				start(1)
			}
			continue
		case r.err == nil || unfinished == 1 || handled(r.err) && !a.repeatable(r.err):
			return r.out, r.err
		}
		unfinished-- // the result of the other goroutine is that of the call
	}
}

// acquire chooses a server, and adds it to tried.
func (a *attempts) acquire(ctx context.Context) (*server, error) {
	a.mu.Lock()
	tried := make(map[*server]bool, len(a.tried))
	for s := range a.tried {
		tried[s] = true
	}
	a.mu.Unlock()
	s, err := a.c.acquire(ctx, tried)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tried == nil {
		a.tried = map[*server]bool{}
	}
	a.tried[s] = true
	return s, nil
}

// spare reports whether a server is ready that the call has not tried.
func (a *attempts) spare() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	for _, s := range a.c.servers {
		if s.state == ready && !a.tried[s] {
			return true
		}
	}
	return false
}

// repeatable reports whether the call may be sent again after err: any call if no handler has begun, and an idempotent one also if a handler may have run.
func (a *attempts) repeatable(err error) bool {
	e, ok := errors.AsType[*cinnabar.Error](err)
	if !ok {
		return false
	}
	refused := e.Remote && !handled(err)
	switch c := e.Code; {
	case c == codes.Draining || c == codes.Again:
		return refused || e.Remote && a.idempotent
	case c == codes.HostUnreach || c == codes.HostFirewall:
		return !e.Remote && a.idempotent
	}
	return false
}

// sleep waits for d, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) (slept bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	cinnabar.Block(ctx, func() {
		select {
		case <-t.C:
			slept = true
		case <-ctx.Done():
		}
	})
	return slept
}

// budgetMost is the number of tokens that a budget has at first, and the largest number that it may have.
const budgetMost = 10

// budget is a token bucket that bounds the repetitions and hedges to a part of the calls. Each call adds ratio tokens, and each repetition or hedge takes
// one.
type budget struct {
	mu    sync.Mutex
	ratio float64
	// +checklocks:mu
	tokens float64
}

func (b *budget) init(ratio float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ratio, b.tokens = ratio, budgetMost
}

// deposit adds the tokens of one call.
func (b *budget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(budgetMost, b.tokens+b.ratio)
}

// withdraw takes a token, or returns false if there is none.
func (b *budget) withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
