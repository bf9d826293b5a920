package xfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
)

// media are the speeds of a transfer: the time that each takes for one chunk.
type media struct{ read, wire, write time.Duration }

// timed sends a file in virtual time and returns how long that took.
func timed(t *testing.T, s Sender, m media, chunks int) time.Duration {
	t.Helper()
	var took time.Duration
	synctest.Test(t, func(t *testing.T) {
		const chunk = minChunk
		dev := openSlow(rate(m.wire, chunk))
		l := must(verbs.Listen(dev, loopback))(t)
		file := &memFile{disk: rate(m.write, chunk)}
		r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }}
		received := make(chan error, 1)
		go func() {
			_, err := r.ServeOne(t.Context(), l)
			received <- err
		}()
		data := noise(chunks * chunk)
		src := sourceOf("f", data)
		src.Data = slowSource{src.Data, rate(m.read, chunk)}
		s.Chunk = chunk
		start := time.Now()
		_, err := s.Send(t.Context(), dev, l.Addr(), src)
		took = time.Since(start)
		if err := errors.Join(err, <-received, l.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(file.data, data) || !file.committed {
			t.Error("the file differs")
		}
	})
	return took
}

// With several buffers a transfer takes as long as the slowest of disk,
// network and disk, not as long as the three together.
// parity: B33
func TestOverlap(t *testing.T) {
	const chunks, ms = 100, time.Millisecond
	for _, m := range []media{
		{read: 4 * ms, wire: 4 * ms, write: 4 * ms},
		{read: 8 * ms, wire: 3 * ms, write: 2 * ms},
		{read: 2 * ms, wire: 8 * ms, write: 3 * ms},
		{read: 3 * ms, wire: 2 * ms, write: 8 * ms},
		{read: 0, wire: 5 * ms, write: 5 * ms},
		{read: 5 * ms, wire: 5 * ms, write: 0},
	} {
		t.Run(fmt.Sprint(m), func(t *testing.T) {
			sum, most := m.read+m.wire+m.write, max(m.read, m.wire, m.write)
			fast := timed(t, Sender{Protocol: Fast}, m, chunks)
			if limit := chunks * most * 5 / 4; fast > limit {
				t.Errorf("fast took %v, over %v: the slowest medium needs %v, all together %v", fast, limit, chunks*most, chunks*sum)
			}
			// The server has one buffer, so the crossing and the storing of the chunks do not overlap. The reading of
			// the next chunk overlaps with both, because the client has two buffers.
			low := chunks * max(m.read, m.wire+m.write)
			if basic := timed(t, Sender{Protocol: Basic}, m, chunks); basic < low || basic > low*21/20 {
				t.Errorf("basic took %v; crossing and writing, or reading, take %v, all together %v", basic, low, chunks*sum)
			}
		})
	}
}

// TestWindows checks that more buffers let more work overlap. With one buffer on each side nothing overlaps, so the fast protocol is then slower
// than the basic one, whose client has two buffers.
// parity: B32
func TestWindows(t *testing.T) {
	const chunks, ms = 50, time.Millisecond
	m := media{read: 4 * ms, wire: 4 * ms, write: 4 * ms}
	last := timed(t, Sender{Protocol: Fast, Window: 1}, m, chunks)
	if basic := timed(t, Sender{Protocol: Basic}, m, chunks); basic > last {
		t.Errorf("basic took %v, one buffer %v", basic, last)
	}
	for _, n := range []int{2, 4, 8} {
		took := timed(t, Sender{Protocol: Fast, Window: n}, m, chunks)
		t.Logf("%d buffers: %v", n, took)
		if took > last+20*ms { // opening and end are a few messages longer
			t.Errorf("%d buffers took %v, fewer %v", n, took, last)
		}
		last = took
	}
}

// A receiver whose disk stops makes the sender wait no longer than the timeout,
// and the other way round.
// parity: B46
func TestStandstill(t *testing.T) {
	for name, m := range map[string]media{
		"slow write": {write: time.Hour},
		"slow wire":  {wire: time.Hour},
		"slow read":  {read: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev := openSlow(rate(m.wire, minChunk))
				l := must(verbs.Listen(dev, loopback))(t)
				file := &memFile{disk: rate(m.write, minChunk)}
				r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }, Timeout: 10 * time.Second}
				received := make(chan error, 1)
				go func() {
					_, err := r.ServeOne(context.Background(), l)
					received <- err
				}()
				src := sourceOf("f", noise(3*minChunk))
				src.Data = slowSource{src.Data, rate(m.read, minChunk)}
				s := Sender{Chunk: minChunk, Timeout: 3 * time.Second} // less than openTimeout, because a slow wire holds up OPEN as well
				start := time.Now()
				_, err := s.Send(context.Background(), dev, l.Addr(), src)
				wantCode(t, err, CodeTimeout, false, "nothing has moved for 3s")
				if m.wire == 0 && m.read == 0 { // otherwise Send waits for what still uses its memory
					if took := time.Since(start); took < 3*time.Second || took > 8*time.Second {
						t.Errorf("gave up after %v", took)
					}
				}
				if err := <-received; err == nil {
					t.Error("the receiver knows nothing of it")
				}
				if file.committed || m.wire == 0 && m.read == 0 && !file.discarded {
					t.Errorf("file: committed %v, discarded %v", file.committed, file.discarded)
				}
				if err := errors.Join(l.Close(), dev.Close()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
