package main

import (
	"io"
	"sync"
)

// syncWriter lets several goroutines write whole lines to one writer.
type syncWriter struct {
	mu sync.Mutex
	w  io.Writer // +checklocks:mu
}

func (s *syncWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}
