package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The rate of an interval is that of the interval alone.
func TestRateLines(t *testing.T) {
	made := uint64(0)
	lines := make(chan string)
	s := Streams{Err: lineWriter(lines)}
	open := make(chan struct{})
	stop := RateLines{To: s, Every: time.Millisecond, Size: 8, Bytes: MiB, Unit: "calls", Made: func() uint64 { made += 10; return made }}.Start(open)
	select {
	case line := <-lines:
		t.Errorf("before the measurement begins: %q", line)
	default:
	}
	close(open)
	for range 3 {
		if line := <-lines; !strings.HasPrefix(line, "8 bytes, after ") || !strings.Contains(line, " calls/s, ") {
			t.Errorf("line %q", line)
		}
	}
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	for {
		select {
		case <-lines: // one that was under way
			continue
		case <-done:
		}
		break
	}
	var none bytes.Buffer
	quiet := Streams{Err: &none}
	RateLines{To: quiet, Unit: "calls"}.Start(open)() // never: made is nil
	if none.Len() > 0 {
		t.Errorf("without an interval: %q", &none)
	}
	if _, err := Interval(true, -time.Second, quiet); ExitCode(t.Context(), err) != ExitUsage {
		t.Errorf("a negative interval: %v", err)
	}
}

// lineWriter passes each line that is written to a test.
type lineWriter chan<- string

func (w lineWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}
