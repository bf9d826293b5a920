package testproc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// reportBytes is the number of bytes of a stream, its last ones, in the log of a failed test.
const reportBytes = 32 << 10

// Stream holds the bytes that a process prints on one of its outputs.
type Stream struct {
	p    *Process
	name string

	mu sync.Mutex
	// +checklocks:mu
	text bytes.Buffer // all bytes so far
	// +checklocks:mu
	partial []byte // the bytes after the last line feed
	// +checklocks:mu
	lines []string // the lines that the test has not taken yet, without line feeds
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	cut bool // another process had the output open when the wait for its end was given up
	// +checklocks:mu
	news chan struct{} // closed, and replaced by a new channel, when a field above changes
}

func newStream(p *Process, name string) *Stream {
	return &Stream{p: p, name: name, news: make(chan struct{})}
}

// ReadFrom adds the bytes of r, which is the pipe of the output. Package os/exec calls it by io.Copy, and closes r if the wait for the
// end of the output is given up.
func (s *Stream) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{s}, r)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cut = true
	}
	return n, err
}

// wasCut reports whether the stream ended before its output was closed.
func (s *Stream) wasCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

// Write adds bytes that the process has printed.
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

// end marks the end of the stream. The bytes after the last line feed become a line.
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

// Line takes the next line and returns it without the line feed. The test fails if the process ends before it prints a line, or prints
// none within the limit.
func (s *Stream) Line() string {
	s.p.t.Helper()
	line, ok := s.NextLine()
	if !ok {
		s.p.t.Fatalf("%s ended (%s) without another line on %s", s.p.name, s.p.state(), s.name)
	}
	return line
}

// NextLine takes the next line as Line does. If the process ends before it prints a line, ok is false and the test does not fail.
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

// Expect takes the first line that matches a regular expression, and all lines before it, so that the next call searches behind
// the match. It returns the match and its groups, as [regexp.Regexp.FindStringSubmatch] does. The test fails if the process ends
// without such a line, or prints none within the limit.
func (s *Stream) Expect(pattern string) []string {
	s.p.t.Helper()
	return s.search(pattern, func(lines []string, i int) []string { return lines[i+1:] })
}

// Take is Expect for lines in any order: it takes the line that matches, and leaves the lines before it to other calls.
func (s *Stream) Take(pattern string) []string {
	s.p.t.Helper()
	return s.search(pattern, func(lines []string, i int) []string { return slices.Delete(lines, i, i+1) })
}

// search waits for a line that matches pattern. left returns the lines that stay when the test takes line i.
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

// await calls take with the lines that the test has not taken yet, after each change, until take returns true and the lines that
// it leaves. await returns false if the stream ends before.
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

// report returns the stream for the log of a failed test, and of a long stream its last bytes.
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
