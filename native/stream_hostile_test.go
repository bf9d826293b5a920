package native

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

var (
	rawFrame = cinnabar.NewRPC[raw, raw](frameName, cinnabar.WithCodec(rawCodec{}))
	rawSum   = cinnabar.NewRPC[raw, raw]("sum", cinnabar.WithCodec(rawCodec{}))
	sum      = NewStream[uint32, uint32]("sum")
)

// element is the bytes of an element in a frame.
func element(n uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{4, 0, 0, 0}, n)
}

// rawPut is a put of elements.
func rawPut(id, seq uint64, flags byte, elements ...uint32) []byte {
	f := frame{magic: magicPut, flags: flags, id: id, seq: seq, size: credit{uint32(len(elements)), uint32(8 * len(elements))}}
	for _, n := range elements {
		f.body = append(f.body, element(n)...)
	}
	return appendFrame(nil, &f)
}

func rawGet(id, seq uint64) []byte {
	return appendFrame(nil, &frame{magic: magicGet, id: id, seq: seq, size: fullCredit})
}

// TestHostileStreamClient opens streams by hand, and breaks the protocol of each in another way. The handler's context ends with an error that names the
// mistake, and so does the answer to the request that has opened the stream. Another stream of the same connection goes on.
// parity: A05
func TestHostileStreamClient(t *testing.T) {
	server, ep := rawPair(t)
	causes, begun := make(chan error, 1), make(chan *servedStream, 1)
	if err := sum.Handle(server, func(ctx context.Context, s *ServerStream[uint32, uint32]) error {
		if MetadataFrom(ctx)["honest"] != "" {
			for n, err := range s.Receive(ctx) {
				if err != nil {
					return err
				}
				if err := s.Send(ctx, n); err != nil {
					return err
				}
			}
			return nil
		}
		begun <- served(ctx).stream()
		<-ctx.Done() // it does not receive
		causes <- context.Cause(ctx)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	honest, err := sum.Open(WithMetadata(ctx, Metadata{"honest": "yes"}), ep)
	if err != nil {
		t.Fatal(err)
	}
	type hostile struct {
		name   string
		frames [][]byte // all but the last get no answer before the last is sent
		want   string
	}
	list := func(id uint64) []hostile {
		long := frame{magic: magicPut, id: id, size: credit{creditCount + 1, 4 * (creditCount + 1)}, body: make([]byte, 4*(creditCount+1))}
		wide := frame{magic: magicPut, id: id, size: credit{2, creditBytes + 8}}
		wide.body = append(binary.LittleEndian.AppendUint32(nil, creditBytes), make([]byte, creditBytes+4)...)
		return []hostile{
			{"a third put", [][]byte{rawPut(id, 0, 0, 1), rawPut(id, 1, 0, 1), rawPut(id, 2, 0, 1)}, "frame 2 without a credit"},
			{"a gap", [][]byte{rawPut(id, 5, 0, 1)}, "frame 5 without a credit"},
			{"a put twice", [][]byte{rawPut(id, 0, 0, 1), rawPut(id, 0, 0, 1)}, "frame 0 came twice"},
			{"a put after the end", [][]byte{rawPut(id, 0, flagEnd, 1), rawPut(id, 1, 0, 1)}, "put 1 came after put 0, which is the end"},
			{"the end before a put", [][]byte{rawPut(id, 1, 0, 1), rawPut(id, 0, flagEnd, 1)}, "put 0 is the end, and put 1 came before it"},
			{"two ends", [][]byte{rawPut(id, 1, flagEnd), rawPut(id, 0, flagEnd)}, "put 0 is the end, and put 1 came before it"},
			{"too many elements", [][]byte{appendFrame(nil, &long)}, "beyond the credit of 1024 elements"},
			{"too many bytes", [][]byte{appendFrame(nil, &wide)}, "beyond the credit of 1024 elements and 262144 bytes"},
			{"a third get", [][]byte{rawGet(id, 0), rawGet(id, 1), rawGet(id, 2)}, "frame 2 without a credit"},
			{"a get twice", [][]byte{rawGet(id, 1), rawGet(id, 1)}, "frame 1 came twice"},
			{"an unknown flag", [][]byte{rawPut(id, 0, 0x80, 1)}, "flags 0x80"},
			{"half an element", [][]byte{rawPut(id, 0, 0, 1)[:frameSize+6]}, "6 bytes of elements, want 8"},
			{"a credit", [][]byte{appendFrame(nil, &frame{magic: magicCredit, id: id, size: fullCredit})}, ""},
		}
	}
	for i := range list(0) {
		id := uint64(1<<40 + i) // of its own, because the server forgets an id after it has answered
		c := list(id)[i]
		t.Run(c.name, func(t *testing.T) {
			short, cancel := context.WithCancel(ctx)
			defer cancel()
			opened := rawSum.Start(short, ep, raw{appendRequestHead(nil, &requestHead{id: id, stream: true})})
			var pending []*cinnabar.Pending[raw]
			var stream *servedStream
			select {
			case stream = <-begun:
			case <-ctx.Done():
				t.Fatal("the handler does not begin")
			}
			for i, b := range c.frames {
				pending = append(pending, rawFrame.Start(short, ep, raw{b}))
				for i < len(c.frames)-1 && stream.held() <= i && ctx.Err() == nil { // the next one must come later
					<-time.NewTimer(time.Millisecond).C
				}
			}
			_, err := pending[len(pending)-1].Wait()
			if codes.Of(err) != codes.ProtocolError {
				t.Errorf("the last frame is answered with %v", err)
			}
			if c.want == "" { // its stream is not known
				cancel()
				if err := SendCancel(ctx, ep, id); err != nil {
					t.Error(err)
				}
				if cause := <-causes; cause == nil {
					t.Error("the context ends without a cause")
				}
				return
			}
			if cause := <-causes; !errors.Is(cause, codes.ProtocolError) || !strings.Contains(cause.Error(), c.want) {
				t.Errorf("the context ends with %v, want %q", cause, c.want)
			}
			res, err := opened.Wait()
			h, _, headErr := parseResponseHead(res.b)
			if err != nil || headErr != nil || h.failure == nil || h.failure.code != codes.ProtocolError || !strings.Contains(h.failure.text, c.want) {
				t.Errorf("answer %v, %v, %+v, want %q", err, headErr, h.failure, c.want)
			}
			for _, p := range pending[:len(pending)-1] {
				if res, err := p.Wait(); err != nil {
					t.Errorf("a frame is answered with %v", err)
				} else if f, err := parseFrame(res.b, magicCredit, magicElements); err != nil || !f.over() {
					t.Errorf("a frame is answered with %+v, %v, want the end of the stream", f, err)
				}
			}
		})
	}
	if err := errors.Join(honest.Send(ctx, 5), honest.CloseSend()); err != nil {
		t.Error(err)
	}
	for n, err := range honest.Receive(ctx) {
		if n != 5 || err != nil {
			t.Errorf("received %d, %v", n, err)
		}
	}
	if err := honest.Wait(ctx); err != nil {
		t.Error(err)
	}
	var counted uint64
	for _, e := range server.Stats().Security.Events {
		if e.Cause == "malformed native message" {
			counted += e.Count
		}
	}
	if want := uint64(len(list(0))); counted != want {
		t.Errorf("%d breaches are counted, want %d", counted, want)
	}
}

// held returns the number of frames that the stream has and has not answered.
func (s *servedStream) held() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range streamCredits {
		if s.puts.slots[i].full {
			n++
		}
		if s.gets.slots[i].full {
			n++
		}
	}
	return n
}

// TestUnknownStream sends frames of streams that the server does not have, and a stream with an id that is in use.
func TestUnknownStream(t *testing.T) {
	server, ep := rawPair(t)
	began, release := make(chan struct{}), make(chan struct{})
	if err := sum.Handle(server, func(context.Context, *ServerStream[uint32, uint32]) error {
		close(began)
		<-release
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{rawPut(7, 0, 0, 1), rawGet(7, 3)} {
		res, err := rawFrame.Call(t.Context(), ep, raw{b})
		f, parseErr := parseFrame(res.b, magicCredit, magicElements)
		if err != nil || parseErr != nil || !f.over() || f.id != 7 {
			t.Errorf("%v, %v, %+v", err, parseErr, f)
		}
	}
	opening := raw{appendRequestHead(nil, &requestHead{id: 7, stream: true})}
	first := rawSum.Start(t.Context(), ep, opening)
	<-began
	res, err := rawSum.Call(t.Context(), ep, opening)
	h, _, headErr := parseResponseHead(res.b)
	if err != nil || headErr != nil || h.failure == nil || !strings.Contains(h.failure.text, "has the same id") {
		t.Errorf("the second stream: %v, %v, %+v", err, headErr, h.failure)
	}
	close(release)
	res, err = first.Wait()
	if h, _, headErr := parseResponseHead(res.b); err != nil || headErr != nil || h.failure != nil {
		t.Errorf("the first stream: %v, %v, %+v", err, headErr, h.failure)
	}
}

// TestStreamIDAgain opens and ends streams with one id on two goroutines, as a client that repeats its ids does. Afterwards the host of the client has
// no stream, so it may open as many as before.
// parity: A05
func TestStreamIDAgain(t *testing.T) {
	conn, host, streams := make(chan struct{}), "host", envelope.NewStreams(8)
	server := &envelope.Server{Streams: streams}
	payload := appendRequestHead(nil, &requestHead{id: 7, stream: true})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 20000 {
				in := arrived(&envelope.Arrival{Payload: payload, Context: t.Context(), Conn: conn, Host: host, Server: server})
				if err := in.err(); err != nil && !errors.Is(err, errTaken) {
					t.Error(err)
					return
				}
				in.end()
			}
		})
	}
	wg.Wait()
	for id := range uint64(2) {
		if err := streams.Add(conn, id+1, host, nil); err != nil {
			t.Error(err)
		}
	}
}

// panicking is an element whose decoding panics at its first time.
type panicking struct{ n byte }

var decodings atomic.Int32

func (p panicking) AppendProc(b []byte) ([]byte, error) { return append(b, p.n), nil }

func (p *panicking) DecodeProc(b []byte) (int, error) {
	if decodings.Add(1) == 1 {
		panic("planned")
	}
	p.n = b[0]
	return 1, nil
}

// TestStreamDecodingPanics has the decoding of an element panic in a handler. The stream ends, and all of its frames are answered, so nothing is left at
// the server.
func TestStreamDecodingPanics(t *testing.T) {
	decodings.Store(0) // the first element of each run panics
	server, ep := rawPair(t)
	s := NewStream[panicking, struct{}]("panics")
	if err := s.Handle(server, func(ctx context.Context, s *ServerStream[panicking, struct{}]) error {
		for _, err := range s.Receive(ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c, err := s.Open(t.Context(), ep)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(t.Context(), panicking{}); err != nil {
		t.Error(err)
	}
	if err := c.Wait(t.Context()); !errors.Is(err, codes.OtherError) {
		t.Errorf("the stream ends with %v", err)
	}
	for end := time.Now().Add(time.Minute); server.Stats().RequestsActive > 0; {
		if runtime.Gosched(); time.Now().After(end) {
			t.Fatalf("%d requests are left", server.Stats().RequestsActive)
		}
	}
}

// TestHostileStreamServer answers frames with bytes that no program of this package sends. The stream ends with an error that names the mistake.
func TestHostileStreamServer(t *testing.T) {
	server, ep := rawPair(t)
	if err := rawSum.HandleCall(server, func(c *cinnabar.Call[raw, raw]) {
		go func() { // the answer comes after the end of the stream
			<-c.Context().Done()
			_ = c.Respond(c.Context(), raw{})
		}()
	}); err != nil {
		t.Fatal(err)
	}
	var answer atomic.Pointer[func(f frame) []byte] // frames of the stream before may still come
	if err := rawFrame.HandleCall(server, func(c *cinnabar.Call[raw, raw]) {
		f, err := parseFrame(c.In.b, magicPut, magicGet)
		if err != nil {
			t.Error(err)
		}
		_ = c.Respond(c.Context(), raw{(*answer.Load())(f)})
	}); err != nil {
		t.Fatal(err)
	}
	elements := func(f frame, size credit, body []byte) []byte {
		return appendFrame(nil, &frame{magic: magicElements, id: f.id, seq: f.seq, size: size, body: body})
	}
	for _, c := range []struct {
		name   string
		put    bool
		answer func(f frame) []byte
		want   string
	}{
		{"nothing", false, func(frame) []byte { return nil }, "0 bytes"},
		{"no frame", true, func(frame) []byte { return make([]byte, 100) }, `want one of ["cnsc"]`},
		{"credit of no elements", true, func(f frame) []byte { return appendFrame(nil, &frame{magic: magicCredit, id: f.id}) }, "count 0"},
		{"credit of another put", true, func(f frame) []byte {
			return appendFrame(nil, &frame{magic: magicCredit, id: f.id, seq: 9, size: fullCredit})
		}, "is to put 9"},
		{"credit in place of elements", false, func(f frame) []byte { return appendFrame(nil, &frame{magic: magicCredit, id: f.id, size: fullCredit}) }, `want one of ["cnse"]`},
		{"elements of another stream", false, func(f frame) []byte { f.id++; return elements(f, credit{1, 8}, element(1)) }, "is to get 0 of stream"},
		{"elements of another get", false, func(f frame) []byte { f.seq += 7; return elements(f, credit{1, 8}, element(1)) }, "is to get 7 of stream"},
		{"too many elements", false, func(f frame) []byte { return elements(f, credit{2000, 8000}, make([]byte, 8000)) }, "beyond the credit"},
		{"elements of another type", false, func(f frame) []byte { return elements(f, credit{1, 6}, []byte{2, 0, 0, 0, 1, 1}) }, "compare the types of both sides"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer.Store(&c.answer)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s, err := sum.Open(ctx, ep)
			if err != nil {
				t.Fatal(err)
			}
			if c.put {
				if err = s.Send(ctx, 1); err == nil {
					err = s.Wait(ctx)
				}
			} else {
				for _, err = range s.Receive(ctx) {
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// FuzzStreamScript gives the state of a stream at its server a random script of frames. Each byte of the script is a frame. The state is never
// beyond its limits: at most two puts and two gets are held.
//
// fuzz:state
// parity: A05
func FuzzStreamScript(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3})
	f.Add([]byte{0x80, 0x10, 0x91, 0x11, 0x20})
	f.Fuzz(func(t *testing.T, script []byte) {
		s := newServedStream(&incoming{parent: t.Context()}, new(envelope.Arrival))
		delivered := uint64(0)
		for _, op := range script {
			seq, flags := uint64(op&0x0f), op>>7
			fr := frame{magic: magicPut, flags: flags, id: 1, seq: seq, size: credit{1, 8}, body: element(uint32(seq))}
			switch op >> 4 & 7 {
			case 0, 4:
			case 1, 5:
				fr = frame{magic: magicGet, id: 1, seq: seq, size: fullCredit}
			default: // the handler receives
				if p, body, _, err := s.element(); err == nil && p != nil {
					if got := binary.LittleEndian.Uint32(body); uint64(got) != delivered {
						t.Fatalf("element %d is received after %d", got, delivered)
					}
					delivered++
					s.consumed(p)
				}
				continue
			}
			s.mu.Lock()
			next, ended, last := s.puts.next, s.ended, s.last
			err := s.takeLocked(nil, &fr)
			if err == nil && fr.magic == magicPut && (seq < next || seq >= next+streamCredits || ended && seq > last) {
				t.Errorf("put %d is accepted, %d is next, end %v at %d", seq, next, ended, last)
			}
			if err != nil && codes.Of(err) != codes.ProtocolError {
				t.Error(err)
			}
			s.mu.Unlock()
			if err != nil {
				return // the stream has ended
			}
		}
		if got := s.held(); got > 2*streamCredits {
			t.Errorf("%d frames are held", got)
		}
	})
}
