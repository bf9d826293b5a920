//go:build !linux

package sockio

import (
	"errors"
	"time"
)

// Direct is true where TryReadv and TryWritev act on the socket itself, and
// false where they copy from and to a staging buffer.
const Direct = false

// socket is the implementation behind Conn.
type socket = staged

func (s *staged) mss() int                 { return 0 }
func (s *staged) stand(bool)               {}
func (s *staged) doubt()                   {}
func (s *staged) setUserTimeout(int) error { return errors.ErrUnsupported }

func (s *staged) answers(time.Duration, <-chan struct{}) (bool, error) {
	return false, errors.ErrUnsupported
}
