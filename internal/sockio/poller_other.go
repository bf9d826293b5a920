//go:build !linux

package sockio

// A Poller does nothing on this system.
type Poller struct{}

// NewPoller returns a Poller.
func NewPoller() (*Poller, error) { return new(Poller), nil }

// Poll returns 0.
func (p *Poller) Poll() (woken int) { return 0 }

// Close does nothing.
func (p *Poller) Close() error { return nil }

// join does nothing.
func (s *staged) join(*Poller) {}
