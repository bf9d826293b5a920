package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"
)

// The schedule of an innocent client.
const (
	steadyEvery   = 5 * time.Millisecond
	newcomerEvery = 25 * time.Millisecond
)

// client is an innocent client of a service.
type client struct {
	notice   notice
	every    time.Duration                   // between newcomers; 0: newcomerEvery
	steady   func(ctx context.Context) error // one call over the connection that lasts; several run at a time
	newcomer func(ctx context.Context) error // connects, calls, and leaves; several run at a time
	close    func()
}

// tally is the result of one kind of calls.
type tally struct {
	Calls, Failures int
	Times           []time.Duration // of each call, in order once the tally is complete
	Error           string          `json:",omitempty"` // the first one
}

// add adds the calls of another round to t.
func (t *tally) add(other *tally) {
	t.Calls += other.Calls
	t.Failures += other.Failures
	t.Times = append(t.Times, other.Times...)
	slices.Sort(t.Times)
	t.Error = cmp.Or(t.Error, other.Error)
}

// percentile returns the time that p of 100 calls do not exceed, 0 if there are no calls.
func (t *tally) percentile(p int) time.Duration {
	n := len(t.Times)
	if n == 0 {
		return 0
	}
	return t.Times[min(n*p/100, n-1)]
}

// report is the line that an innocent client prints for each measurement. A kind of calls that the service does not have is nil.
type report struct{ Steady, Newcomer *tally }

// add adds the calls of another round to r.
func (r *report) add(other report) {
	for _, k := range []struct {
		into **tally
		from *tally
	}{{&r.Steady, other.Steady}, {&r.Newcomer, other.Newcomer}} {
		if k.from == nil {
			continue
		}
		if *k.into == nil {
			*k.into = new(tally)
		}
		(*k.into).add(k.from)
	}
}

// beInnocent measures for each duration that comes from in.
func (o *order) beInnocent(s *service, in io.Reader, out *json.Encoder) error {
	ctx := context.Background()
	c, err := s.client(ctx, o.Server)
	if err != nil {
		return err
	}
	defer c.close()
	if err := out.Encode(c.notice); err != nil {
		return err
	}
	for dec := json.NewDecoder(in); ; {
		var d time.Duration
		if err := dec.Decode(&d); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := out.Encode(c.measure(ctx, d, o.CallLimit)); err != nil {
			return err
		}
	}
}

// measure keeps the schedule for d. A call has failed after limit.
func (c *client) measure(ctx context.Context, d, limit time.Duration) (r report) {
	var wg sync.WaitGroup
	start := time.Now()
	for _, k := range []struct {
		call  func(context.Context) error
		every time.Duration
		into  **tally
	}{{c.steady, steadyEvery, &r.Steady}, {c.newcomer, cmp.Or(c.every, newcomerEvery), &r.Newcomer}} {
		if k.call != nil {
			*k.into = new(tally)
			wg.Go(func() { (*k.into).keep(ctx, bounded(k.call, limit), k.every, start, d) })
		}
	}
	wg.Wait()
	return r
}

// keep makes the calls of a schedule: one every so often from start on, for d. No call waits for another.
func (t *tally) keep(ctx context.Context, call func(context.Context) error, every time.Duration, start time.Time, d time.Duration) {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards t
	for due := start; due.Before(start.Add(d)); due = due.Add(every) {
		pause(ctx, time.Until(due))
		wg.Go(func() {
			err := call(ctx)
			took := time.Since(due)
			mu.Lock()
			defer mu.Unlock()
			t.Calls++
			t.Times = append(t.Times, took)
			if err != nil {
				t.Failures++
				if t.Error == "" {
					t.Error = err.Error()
				}
			}
		})
	}
	wg.Wait()
}

// bounded returns call with a limit of its time.
func bounded(call func(context.Context) error, limit time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return call(ctx)
	}
}
