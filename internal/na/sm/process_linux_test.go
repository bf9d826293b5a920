package sm

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/shm"
	"cinnabar/internal/testproc"
)

// Environment of a test's other process.
const (
	prefixEnv = "CINNABAR_SM_PREFIX"
	targetEnv = "CINNABAR_SM_TARGET"
	stepEnv   = "CINNABAR_SM_STEP"
	modeEnv   = "CINNABAR_SM_MODE" // a progress.Mode
	lateEnv   = "CINNABAR_SM_LATE" // delay of each wake-up; at its end the process prints the number of delays
)

// lateToll is the delay of each signal to another process, in processes and tests that delay wake-ups.
const lateToll = 13 * time.Microsecond

// roles are the functions of a test's other processes. They print their steps on standard output, a line each, and go on, or end,
// after a line on standard input.
var roles = map[string]func([]string) error{
	"server":   playing((*player).server),
	"raw":      playing(func(p *player) error { return p.raw(os.Getenv(targetEnv), os.Getenv(stepEnv)) }),
	"caller":   playing(func(p *player) error { return p.caller(os.Getenv(targetEnv)) }),
	"pacer":    playing((*player).pacer),
	"burner":   playing(func(p *player) error { p.burner(); return nil }),
	"confined": playing(func(p *player) error { return p.confined(os.Getenv(targetEnv)) }),
	"counter":  playing((*player).counter),
	"flooder":  playing(func(p *player) error { return p.flooder(os.Getenv(targetEnv), os.Getenv(stepEnv)) }),
	"unmapper": playing((*player).unmapper),
	"users": playing(func(p *player) error {
		u := readUsers()
		p.say(fmt.Sprint("users ", u.all, " ", u.overflow))
		return nil
	}),
	"squatter": playing(func(p *player) error { return p.squatter(os.Getenv(targetEnv)) }),
}

// playing returns a role of a player with the Config in the environment.
func playing(play func(*player) error) func([]string) error {
	return func([]string) error {
		late, err := time.ParseDuration(cmp.Or(os.Getenv(lateEnv), "0"))
		if err != nil {
			return err
		}
		if late > 0 {
			progress.MakeWakeUpsDear(late, lateToll, true)
			defer func() {
				lates, tolls := progress.DearWakeUps()
				fmt.Println("delayed", lates, tolls)
			}()
		}
		return play(&player{cfg: Config{Prefix: os.Getenv(prefixEnv), Progress: progress.New(progress.Mode(os.Getenv(modeEnv)))}, in: bufio.NewScanner(os.Stdin)})
	}
}

type player struct {
	cfg Config
	in  *bufio.Scanner
}

// say prints a line and waits for one.
func (p *player) say(line string) {
	fmt.Println(line)
	p.in.Scan()
}

// server echoes until standard input ends.
func (p *player) server() error {
	h := &echo{}
	p.cfg.Listen, p.cfg.Handler = true, h
	ep, err := Open(context.Background(), p.cfg)
	if err != nil {
		return err
	}
	e, ok := ep.(*Endpoint)
	if !ok {
		return errors.New("not an endpoint")
	}
	h.ep.Store(e)
	p.say("ready " + e.own.String())
	return ep.Close(context.Background())
}

// unmapper is a server in C that polls, which takes everything and answers nothing: it removes its region when told to, and
// unmaps it when told once more.
func (p *player) unmapper() error {
	cfg, err := p.cfg.withDefaults()
	if err != nil {
		return err
	}
	ident := identity{int32(os.Getpid()), 0}
	path := cfg.objectPath(ident.uri())
	m, err := shm.Create(path, regionSize)
	if err != nil {
		return err
	}
	newRegion(m).init(ident, 0)
	p.say("ready " + scheme + ident.uri())
	if err := os.Remove(path); err != nil {
		return err
	}
	p.say("removed")
	if err := m.Close(); err != nil {
		return err
	}
	p.say("unmapped")
	return nil
}

// caller makes calls until standard input ends: one for each line.
func (p *player) caller(target string) error {
	ep, err := Open(context.Background(), p.cfg)
	if err != nil {
		return err
	}
	to, err := ep.Lookup(target)
	if err != nil {
		return err
	}
	buf := make([]byte, bufferSize)
	fmt.Println("ready")
	for tag := uint32(1); p.in.Scan(); tag++ {
		send, recv := newSignal(), newSignal()
		ep.RecvExpected(&recv.op, to, tag, buf)
		ep.SendRequest(&send.op, to, tag, []byte(p.in.Text()))
		<-send.ch
		ep.Drive(to, &recv.ev)
		<-recv.ch
		if recv.op.Err != nil {
			return recv.op.Err
		}
		fmt.Println("answer " + string(buf[:recv.op.N]))
	}
	return ep.Close(context.Background())
}

// Steps of a client in C, at each of which it may be killed or stopped.
var rawSteps = []string{
	"mapped", "claimed", "commanded", "announced", "buffer claimed", "lock held", "filled", "head moved", "pushed", "rung", "answered", "taken", "released",
}

// raw does what a client in C does, and stays at a step until told to go on.
func (p *player) raw(target, stop string) error {
	at := func(step string) {
		if step == stop {
			p.say("at " + step)
		}
	}
	uri, _, err := parseTarget(target, hostID)
	if err != nil {
		return err
	}
	cfg, err := p.cfg.withDefaults()
	if err != nil {
		return err
	}
	m, err := shm.Open(cfg.objectPath(uri), regionSize, regionSize)
	if err != nil {
		return err
	}
	r := newRegion(m)
	at("mapped")
	pair := r.claimPair()
	at("claimed")
	ident := identity{int32(os.Getpid()), 0}
	if err := r.commands.push(makeCommand(ident, pair, commandReserved, 0)); err != nil {
		return err
	}
	at("commanded")
	sock, err := openSocket()
	if err != nil {
		return err
	}
	doorbell, _ := unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_NONBLOCK)
	recvEvent, _ := unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_NONBLOCK)
	e := &Endpoint{sock: sock}
	if err := e.sendCommand(cfg.socketPath(uri), makeCommand(ident, pair, commandReserved, 0), doorbell, recvEvent); err != nil {
		return err
	}
	at("announced")
	out, in := producer(r.tx(pair)), consumer(r.rx(pair))
	b := claimBit(r.bufferMap)
	at("buffer claimed")
	r.lock(b).Add(^uint32(0))
	at("lock held")
	copy(r.buffer(b), "a request")
	r.lock(b).Store(unlocked())
	at("filled")
	if stop == "head moved" {
		out.head.Store((out.at + 1) & ringMask)
	}
	at("head moved")
	out.push(makeDescriptor(5, 9, b, typeUnexpected))
	at("pushed")
	if err := addTokens(doorbell, 1); err != nil {
		return err
	}
	at("rung")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for in.empty() {
		<-tick.C
	}
	at("answered")
	d, _, _ := in.peek()
	in.advance()
	at("taken")
	answer := string(r.buffer(d.buffer())[:d.len()])
	releaseBit(r.bufferMap, d.buffer())
	if err := e.sendCommand(cfg.socketPath(uri), makeCommand(ident, pair, commandReleased, 0)); err != nil {
		return err
	}
	at("released")
	fmt.Println("done " + answer)
	return nil
}

// child is a test's other process.
type child struct {
	*testproc.Process
	t testing.TB
}

func start(t testing.TB, role string, env ...string) *child {
	t.Helper()
	return startAs(t, os.Geteuid(), role, env...)
}

// startAs is start for a user. Only root can start a process of another user.
func startAs(t testing.TB, uid int, role string, env ...string) *child {
	t.Helper()
	c := childCommand(role, env)
	if uid != os.Geteuid() {
		c.Path = "/proc/self/exe" // the directory of the test's program is closed to others
		c.Attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		c.Dir = "/"
	}
	watch(t)
	return &child{testproc.Start(t, c), t}
}

// startWith is start with other attributes of the process; nil: the kernel does not start such a process.
func startWith(t testing.TB, role string, attr syscall.SysProcAttr) *child {
	t.Helper()
	c := childCommand(role, nil)
	c.Attr = &attr
	watch(t)
	p, err := testproc.TryStart(t, c)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return &child{p, t}
}

// childCommand describes a process with a role. It uses the prefix of this process's tests unless env has another.
func childCommand(role string, env []string) testproc.Command {
	return testproc.Command{Role: role, Env: append([]string{prefixEnv + "=" + testPrefix}, env...), Limit: testLimit}
}

// expect waits for a line that begins with prefix, and returns the rest.
func (c *child) expect(prefix string) string {
	c.t.Helper()
	line := c.Stdout.Line()
	rest, found := strings.CutPrefix(line, prefix)
	if !found {
		c.t.Fatalf("the other process prints %q, want %q", line, prefix)
	}
	return rest
}

// calls makes some calls with messages of both kinds.
func calls(t testing.TB, e *Endpoint, server string) {
	t.Helper()
	c := newCaller(e, lookup(t, e, server))
	for i := range 50 {
		msg := make([]byte, 40*i)
		if got, err := c.call(t, msg); err != nil || len(got) != len(msg) {
			t.Fatalf("call %d: %d bytes, %v", i, len(got), err)
		}
	}
}

// atEachStep starts a client in C for each of its steps, and calls f when the client is at that step.
func atEachStep(t *testing.T, f func(t *testing.T, server *Endpoint, c *child)) {
	for _, step := range rawSteps {
		t.Run(strings.ReplaceAll(step, " ", "_"), func(t *testing.T) {
			t.Parallel()
			server, _ := serve(t, Config{})
			c := start(t, "raw", targetEnv+"="+server.own.String(), stepEnv+"="+step)
			c.expect("at ")
			f(t, server, c)
		})
	}
}

// TestClientKilled kills a client at each step: its pair and buffers come back, and others do not notice.
func TestClientKilled(t *testing.T) {
	atEachStep(t, func(t *testing.T, server *Endpoint, c *child) {
		c.Kill()
		client := open(t, Config{})
		calls(t, client, server.own.String())
		shut(t, client)
		settled(t, server)
		for i := range buffers {
			if v := server.region.lock(i).Load(); v != unlocked() {
				t.Errorf("lock %d is %d", i, int32(v))
			}
		}
	})
}

// TestClientStopped stops a client at each step: others go on meanwhile, and so does it afterwards.
func TestClientStopped(t *testing.T) {
	atEachStep(t, func(t *testing.T, server *Endpoint, c *child) {
		c.Suspend()
		client := open(t, Config{})
		calls(t, client, server.own.String())
		c.Send("")
		c.Resume()
		c.expect("done a request")
		shut(t, client)
		settled(t, server)
	})
}

// TestServerKilled kills a server. Calls that are under way end in bounded time, later calls do too, and the next endpoint that is opened
// removes the files of the server. In mode Latency the poller of the client does not park while a call waits, and must still see the death.
// parity: D01
func TestServerKilled(t *testing.T) {
	for _, mode := range []progress.Mode{progress.Balanced, progress.Latency, progress.Economy} {
		t.Run(string(mode), func(t *testing.T) {
			if err := mode.Check(runtime.NumCPU()); err != nil {
				t.Skip(err)
			}
			serverKilled(t, mode)
		})
	}
}

func serverKilled(t *testing.T, mode progress.Mode) {
	prefix := privatePrefix("k" + string(mode))
	s := start(t, "server", prefixEnv+"="+prefix, modeEnv+"="+string(mode))
	addr := s.expect("ready ")
	client := open(t, Config{Prefix: prefix, Progress: progress.New(mode)})
	calls(t, client, addr)
	to := lookup(t, client, addr)
	s.Suspend()
	send, recv := newSignal(), newSignal()
	client.RecvExpected(&recv.op, to, 1000, make([]byte, 8))
	client.SendRequest(&send.op, to, 1000, []byte("x"))
	if err := send.wait(t); err != nil {
		t.Fatal(err)
	}
	client.Drive(to, &recv.ev) // returns after a spin without a message; the poller then waits
	done := to.Done()
	s.Kill()
	if err := recv.wait(t); na.KindOf(err) != na.Unreachable {
		t.Errorf("the call under way: %v", err)
	}
	await(t, "the end of the connection", done)
	c := newCaller(client, to)
	if _, err := c.call(t, nil); na.KindOf(err) != na.Unreachable {
		t.Errorf("a later call: %v", err)
	} else {
		t.Log(err)
	}
	open(t, Config{Prefix: prefix})
	uri := strings.TrimPrefix(addr, scheme)
	for _, path := range []string{client.cfg.objectPath(uri), client.cfg.socketPath(uri), client.cfg.socketDir(uri)} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// TestClientKilledLatency kills clients of a server in mode Latency. The poller of the server does not park, because the server waits for the
// response to a call of its own, and must still take back the pair and the copy buffer of each client.
func TestClientKilledLatency(t *testing.T) {
	if err := progress.Latency.Check(runtime.NumCPU()); err != nil {
		t.Skip(err)
	}
	for _, step := range []string{"claimed", "buffer claimed", "answered"} {
		t.Run(strings.ReplaceAll(step, " ", "_"), func(t *testing.T) {
			server, _ := serve(t, Config{Progress: progress.New(progress.Latency)})
			peer := start(t, "server")
			to := lookup(t, server, peer.expect("ready "))
			calls(t, server, to.String())
			peer.Suspend()
			send, recv := newSignal(), newSignal()
			server.RecvExpected(&recv.op, to, 1, make([]byte, bufferSize))
			server.SendRequest(&send.op, to, 1, []byte("a call"))
			if err := send.wait(t); err != nil {
				t.Fatal(err)
			}
			server.Drive(to, &recv.ev) // returns after a spin without a message; the poller then waits
			spins := server.cfg.Progress.Counters().Spins
			eventually(t, "the poller looks for the response", func() bool { return server.cfg.Progress.Counters().Spins > spins })
			c := start(t, "raw", targetEnv+"="+server.own.String(), stepEnv+"="+step)
			c.expect("at ")
			c.Kill()
			settled(t, server)
			peer.Resume()
			if err := recv.wait(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDearWakeUps delays each wake-up and each signal of both processes, and stops the server while a call waits. Every call must get its
// answer, also when both sides have parked. The counters of both processes prove that delays have taken place. The test does not run in
// parallel with others, because it sets the delays of the whole process.
func TestDearWakeUps(t *testing.T) {
	const late = 300 * time.Microsecond
	progress.MakeWakeUpsDear(late, lateToll, true)
	defer progress.MakeWakeUpsDear(0, 0, true)
	for _, mode := range []progress.Mode{progress.Balanced, progress.Economy} {
		t.Run(string(mode), func(t *testing.T) {
			lates, tolls := progress.DearWakeUps()
			s := start(t, "server", modeEnv+"="+string(mode), lateEnv+"="+late.String())
			policy := progress.New(mode)
			client := open(t, Config{Progress: policy})
			to := lookup(t, client, s.expect("ready "))
			c := newCaller(client, to)
			for i := range 20 {
				calls(t, client, to.String())
				if i%2 == 0 { // in the other rounds the server may spin when it is stopped
					conn := to.(*Addr).conn.Load()
					eventually(t, "the server parks", func() bool { return conn.ext.asleep.Load() == 1 })
				}
				s.Suspend()
				send, recv := newSignal(), newSignal()
				c.tag++
				client.RecvExpected(&recv.op, to, c.tag, c.buf)
				client.SendRequest(&send.op, to, c.tag, []byte("late"))
				if err := send.wait(t); err != nil {
					t.Fatal(err)
				}
				client.Drive(to, &recv.ev)
				eventually(t, "the poller of the client parks", client.poll.parked.Load)
				s.Resume()
				if err := recv.wait(t); err != nil || string(c.buf[:recv.op.N]) != "late" {
					t.Fatalf("a call to a server that was stopped: %d bytes, %v", recv.op.N, err)
				}
			}
			if n := policy.Counters().Parks; n == 0 {
				t.Error("the client has not counted a park")
			}
			if l, n := progress.DearWakeUps(); l == lates || n == tolls {
				t.Errorf("%d wake-ups and %d signals of the client were delayed, want some of both", l-lates, n-tolls)
			}
			s.Send("")
			var l, n uint64
			if _, err := fmt.Sscan(s.expect("delayed "), &l, &n); err != nil || l == 0 || n == 0 {
				t.Errorf("%d wake-ups and %d signals of the server were delayed, want some of both; %v", l, n, err)
			}
		})
	}
}

// TestServerUnreaped leaves the region of a process that has ended and that its parent has not waited for, so that the kernel still has
// its number: the process counts as gone, a call to it fails, and the next endpoint to open removes the region.
func TestServerUnreaped(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	p := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^$")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Wait() }() // its end is no matter of this test
	for {
		err := unix.Waitid(unix.P_PID, p.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	ident := identity{int32(p.Process.Pid), 0}
	if err := unix.Kill(p.Process.Pid, 0); err != nil || !processGone(ident.pid) {
		t.Errorf("the kernel has process %d: %v; it counts as gone: %v", ident.pid, err, processGone(ident.pid))
	}
	client := open(t, Config{Prefix: privatePrefix("z")})
	path := client.cfg.objectPath(ident.uri())
	m, err := shm.Create(path, regionSize)
	if err != nil {
		t.Fatal(err)
	}
	newRegion(m).init(ident, 0)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	to := lookup(t, client, scheme+ident.uri())
	if _, err := newCaller(client, to).call(t, nil); na.KindOf(err) != na.Unreachable {
		t.Errorf("a call: %v; want kind %v", err, na.Unreachable)
	}
	open(t, Config{Prefix: client.cfg.Prefix})
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", path, err)
	}
}

// TestServerStopped stops a server and lets it go on: calls take that long, and nothing is lost.
func TestServerStopped(t *testing.T) {
	s := start(t, "server")
	addr := s.expect("ready ")
	client := open(t, Config{})
	to := lookup(t, client, addr)
	calls(t, client, addr)
	s.Suspend()
	const n = 200 // more than there are slots and buffers
	send, recv := make([]*signal, n), make([]*signal, n)
	for i := range n {
		send[i], recv[i] = newSignal(), newSignal()
		client.RecvExpected(&recv[i].op, to, uint32(2000+i), make([]byte, bufferSize))
		client.SendRequest(&send[i].op, to, uint32(2000+i), make([]byte, 100+10*i))
	}
	cancelled := newSignal()
	client.SendRequest(&cancelled.op, to, 9999, []byte("behind all others"))
	client.Cancel(&cancelled.op)
	if err := cancelled.wait(t); na.KindOf(err) != na.Canceled || !errors.Is(err, errNoRoom) {
		t.Errorf("cancelled: %v", err)
	}
	s.Resume()
	for i := range n {
		if err := send[i].wait(t); err != nil {
			t.Fatal(err)
		}
		if err := recv[i].wait(t); err != nil || recv[i].op.N != int64(100+10*i) {
			t.Fatalf("call %d: %d bytes, %v", i, recv[i].op.N, err)
		}
	}
}

// TestClientProcess has calls from another process, which parks between them.
func TestClientProcess(t *testing.T) {
	server, _ := serve(t, Config{})
	c := start(t, "caller", targetEnv+"="+server.own.String())
	c.expect("ready")
	for i := range 100 {
		c.Send(fmt.Sprint("line ", i))
		if got := c.expect("answer "); got != fmt.Sprint("line ", i) {
			t.Fatalf("got %q", got)
		}
	}
	c.CloseInput()
	settled(t, server)
}
