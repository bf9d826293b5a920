package testproc

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// reportBytes is how much of the end of a stream a failed test's log has.
const reportBytes = 32 << 10

// Stream is what a process prints on one of its outputs.
type Stream struct {
	p    *Process
	name string

	mu sync.Mutex
	// +checklocks:mu
	text bytes.Buffer // all
	// +checklocks:mu
	partial []byte // since the last end of a line
	// +checklocks:mu
	lines []string // that the test has not taken yet, without their ends
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	news chan struct{} // closed, and replaced, when something above changes
}

func newStream(p *Process, name string) *Stream {
	return &Stream{p: p, name: name, news: make(chan struct{})}
}

// Write adds what the process has printed. It is called by package os/exec.
func (s *Stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	s.partial = append(s.partial, b...)
	for {
		line, rest, whole := bytes.Cut(s.partial, []byte("\n"))
		if !whole {
			break
		}
		s.lines = append(s.lines, strings.TrimSuffix(string(line), "\r"))
		s.partial = rest
	}
	s.changedLocked()
	return len(b), nil
}

// end is the end of the stream. A last line may have no end.
func (s *Stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.partial) > 0 {
		s.lines = append(s.lines, string(s.partial))
		s.partial = nil
	}
	s.ended = true
	s.changedLocked()
}

// +checklocks:s.mu
func (s *Stream) changedLocked() {
	close(s.news)
	s.news = make(chan struct{})
}

// String returns everything so far. It is complete when the process has ended.
func (s *Stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Line returns the next line, without its end. The test fails if the process ends before, or prints none within the limit.
func (s *Stream) Line() string {
	s.p.t.Helper()
	line, ok := s.NextLine()
	if !ok {
		s.p.t.Fatalf("%s ended (%s) without another line on %s", s.p.name, s.p.state(), s.name)
	}
	return line
}

// NextLine is Line for a process that may end instead: ok is false then.
func (s *Stream) NextLine() (line string, ok bool) {
	s.p.t.Helper()
	ok = s.await("a line", func(lines []string) ([]string, bool) {
		if len(lines) == 0 {
			return nil, false
		}
		line = lines[0]
		return lines[1:], true
	})
	return line, ok
}

// Expect returns the first line that matches a regular expression, and its groups, as [regexp.Regexp.FindStringSubmatch]
// does. It takes the lines before it, too: the next call searches what comes behind. The test fails if there is no such line
// until the process ends, or within the limit.
func (s *Stream) Expect(pattern string) []string {
	s.p.t.Helper()
	return s.search(pattern, func(lines []string, i int) []string { return lines[i+1:] })
}

// Take is Expect for lines whose order is not known: lines before the one that it returns stay for other calls.
func (s *Stream) Take(pattern string) []string {
	s.p.t.Helper()
	return s.search(pattern, func(lines []string, i int) []string { return slices.Delete(lines, i, i+1) })
}

// search waits for a line that matches. left returns the lines that stay for other calls when line i is taken.
func (s *Stream) search(pattern string, left func(lines []string, i int) []string) (groups []string) {
	s.p.t.Helper()
	re := regexp.MustCompile(pattern)
	ok := s.await(fmt.Sprintf("a line like %q", pattern), func(lines []string) ([]string, bool) {
		for i, line := range lines {
			if groups = re.FindStringSubmatch(line); groups != nil {
				return left(lines, i), true
			}
		}
		return nil, false
	})
	if !ok {
		s.p.t.Fatalf("%s ended (%s) without a line like %q on %s", s.p.name, s.p.state(), pattern, s.name)
	}
	return groups
}

// await waits until take, which is called with the lines that the test has not taken yet, returns true and the lines that it
// leaves. It returns false if the stream ends before.
func (s *Stream) await(what string, take func(lines []string) (left []string, ok bool)) bool {
	s.p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.p.limit)
	defer cancel()
	for {
		s.mu.Lock()
		left, ok := take(s.lines)
		if ok {
			s.lines = left
		}
		ended, news := s.ended, s.news
		s.mu.Unlock()
		if ok || ended {
			return ok
		}
		select {
		case <-news:
		case <-ctx.Done():
			s.p.t.Fatalf("%s has not printed %s on %s within %v", s.p.name, what, s.name, s.p.limit)
		}
	}
}

// report is the stream, or the end of a long one, for the log of a failed test.
func (s *Stream) report() string {
	text := s.String()
	if text == "" {
		return ""
	}
	if cut := len(text) - reportBytes; cut > 0 {
		text = fmt.Sprintf("(%d bytes) ...%s", cut, text[cut:])
	}
	return fmt.Sprintf("--- its %s:\n%s\n", s.name, strings.TrimSuffix(text, "\n"))
}
