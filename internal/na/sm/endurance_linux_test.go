package sm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// Environment that makes tests of this file long: how many times TestParkCycles and TestParkCyclesOfProcesses have each
// side park, and how many messages TestMessages sends.
const (
	cyclesEnv   = "CINNABAR_SM_CYCLES"
	messagesEnv = "CINNABAR_SM_MESSAGES"
)

// stallLimit is how long no call may take in a long test. Short ones run where others keep processors for longer.
const stallLimit = time.Second

// countFrom is the number that the environment says, and that it does, or else what short says.
func countFrom(t testing.TB, env string, short int) (n int, long bool) {
	t.Helper()
	s := os.Getenv(env)
	if s == "" {
		return short, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%q is no number of times", env, s)
	}
	return n, true
}

// idle keeps the processor for d: a thread that slept would be woken later than that.
func idle(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		shm.Pause(1)
	}
}

// gapAround is a random time around the spin window: often just as long, sometimes too long for a probe too, and rarely longer than any spin, which
// other programs can lengthen to 20 ms.
func gapAround(rng *rand.Rand, window time.Duration) time.Duration {
	switch n := rng.IntN(50); {
	case n < 20:
		return rand.N(2 * window)
	case n < 45:
		return window - window/4 + rand.N(window/2)
	case n < 49:
		return 4*window + rand.N(window)
	}
	return 25 * time.Millisecond
}

// pacer is a server that answers a request of 16 bytes as many nanoseconds later as the first 8 say. The answer has the number of its parks, and
// the present length of its spins in nanoseconds.
func (p *player) pacer() error {
	h := &echo{}
	p.cfg.Listen, p.cfg.Handler = true, handlerFunc(func(m *na.Message) na.Task {
		wait := time.Duration(binary.LittleEndian.Uint64(m.Data))
		a, _ := h.Request(m).(*echoAnswer)
		return taskFunc(func() {
			idle(wait)
			policy := h.ep.Load().cfg.Progress
			binary.LittleEndian.PutUint64(a.buf, policy.Counters().Parks)
			binary.LittleEndian.PutUint64(a.buf[8:], uint64(policy.Budget()))
			a.Run()
		})
	})
	e, err := p.open()
	if err != nil {
		return err
	}
	h.ep.Store(e)
	p.say("ready " + e.own.String())
	return e.Close(context.Background())
}

func (p *player) open() (*Endpoint, error) {
	ep, err := Open(context.Background(), p.cfg)
	if err != nil {
		return nil, err
	}
	e, _ := ep.(*Endpoint) // Open returns no others
	return e, nil
}

// phase is for how many calls only one of two sides takes its time: the other one goes on spinning meanwhile. Then both do.
const phase = 100

// TestParkCyclesOfProcesses has two processes call and answer after random times around the spin window of the one that waits, until both have
// parked many times: none stays parked.
// parity: H126 G75
func TestParkCyclesOfProcesses(t *testing.T) {
	n, long := countFrom(t, cyclesEnv, 200)
	s := start(t, "pacer")
	client := open(t, Config{})
	c := newCaller(client, lookup(t, client, s.expect("ready ")))
	const least = 50 * time.Microsecond // because Budget returns 0 where waiters do not spin, as on one processor
	theirWindow := least
	rng := rand.New(rand.NewPCG(5, 6))
	var calls, theirs uint64
	var longest time.Duration
	begin := time.Now()
	for ours := uint64(0); min(ours, theirs) < uint64(n); ours = client.cfg.Progress.Counters().Parks {
		if time.Since(begin) > 3*testLimit && !long { // less than wholeLimit
			t.Fatalf("parked %d and %d times in %d calls", ours, theirs, calls)
		}
		window := max(client.cfg.Progress.Budget(), least)
		gap, wait := gapAround(rng, theirWindow), gapAround(rng, window)
		switch calls / phase % 3 {
		case 1:
			gap = 0
		case 2:
			wait = 0
		}
		idle(gap)
		sent := time.Now()
		answer, err := c.call(t, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(wait)), 0))
		if err != nil || len(answer) != 16 {
			t.Fatalf("call %d: %d bytes, %v", calls, len(answer), err)
		}
		longest = max(longest, time.Since(sent)-wait)
		theirs = binary.LittleEndian.Uint64(answer)
		theirWindow = max(time.Duration(binary.LittleEndian.Uint64(answer[8:])), least)
		calls++
	}
	if long && longest > stallLimit {
		t.Errorf("a call took %v", longest)
	}
	t.Logf("%d calls in %v; the client has parked %d times, the server %d times; the longest call took %v",
		calls, time.Since(begin).Round(time.Millisecond), client.cfg.Progress.Counters().Parks, theirs, longest)
}

// counter is a server that wants numbered requests in order, and answers with their numbers.
func (p *player) counter() error {
	h := &echo{direct: true}
	var next uint64
	wrong := make(chan string, 1)
	p.cfg.Listen, p.cfg.Handler = true, handlerFunc(func(m *na.Message) na.Task {
		if got := binary.LittleEndian.Uint64(m.Data); got != next {
			select {
			case wrong <- fmt.Sprintf("request %d came in place of %d", got, next):
			default:
			}
		}
		next++
		return h.Request(m)
	})
	e, err := p.open()
	if err != nil {
		return err
	}
	h.ep.Store(e)
	p.say("ready " + e.own.String())
	if err := e.Close(context.Background()); err != nil {
		return err
	}
	select {
	case text := <-wrong:
		fmt.Println("wrong", text)
	default:
		fmt.Println("served", next)
	}
	return nil
}

// inFlight is how many calls of TestMessages are under way.
const inFlight = 64

// messageSizes are those of the requests and answers of TestMessages, in turn: most go in a slot, some in a copy buffer.
var messageSizes = [...]int{8, 64, 8, 256, 8, 8, 300, 8, 8, 1024, 8}

// TestMessages sends many messages from one process to another and back, and loses, doubles and disorders none.
// parity: H126
func TestMessages(t *testing.T) {
	n, _ := countFrom(t, messagesEnv, 20_000)
	s := start(t, "counter")
	client := open(t, Config{})
	to := lookup(t, client, s.expect("ready "))
	type slot struct {
		send, recv *signal
		msg, buf   []byte
	}
	var slots [inFlight]slot
	for i := range slots {
		slots[i] = slot{newSignal(), newSignal(), make([]byte, bufferSize), make([]byte, bufferSize)}
	}
	size := func(seq uint64) int { return messageSizes[seq%uint64(len(messageSizes))] }
	begin, calls := time.Now(), uint64((n+1)/2)
	for sent, done := uint64(0), uint64(0); done < calls; done++ {
		for ; sent < calls && sent < done+inFlight; sent++ {
			k := &slots[sent%inFlight]
			binary.LittleEndian.PutUint64(k.msg, sent)
			client.RecvExpected(&k.recv.op, to, uint32(sent), k.buf)
			client.SendRequest(&k.send.op, to, uint32(sent), k.msg[:size(sent)])
		}
		k := &slots[done%inFlight]
		client.Drive(to, &k.recv.ev)
		if err := k.send.wait(t); err != nil {
			t.Fatalf("call %d: %v", done, err)
		}
		if err := k.recv.wait(t); err != nil {
			t.Fatalf("call %d: %v", done, err)
		}
		if got := binary.LittleEndian.Uint64(k.buf); got != done || k.recv.op.N != int64(size(done)) {
			t.Fatalf("call %d got answer %d, of %d bytes", done, got, k.recv.op.N)
		}
	}
	t.Logf("%d messages in %v; %d and %d answers that nobody waited for or requests that nobody took", 2*calls,
		time.Since(begin).Round(time.Millisecond), client.stats.unmatched.Load(), client.stats.dropped.Load())
	s.Send("")
	if got := s.expect("served "); got != strconv.FormatUint(calls, 10) {
		t.Errorf("the server has served %s requests, want %d", got, calls)
	}
}
