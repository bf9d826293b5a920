//go:build !linux

package sockio

import (
	"os"
	"sync"
)

// A Poller finds nothing on this system, where connections wait by themselves.
type Poller struct {
	once sync.Once
	done chan struct{}
}

// NewPoller returns a Poller.
func NewPoller() (*Poller, error) { return &Poller{done: make(chan struct{})}, nil }

// Wait returns 0 and [os.ErrClosed] after [Poller.Close].
func (p *Poller) Wait() (woken int, err error) {
	<-p.done
	return 0, os.ErrClosed
}

// Settle returns at once.
func (p *Poller) Settle() {}

// Poll returns 0.
func (p *Poller) Poll() (woken int) { return 0 }

// Close ends Wait.
func (p *Poller) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// join does nothing.
func (s *staged) join(*Poller) {}
