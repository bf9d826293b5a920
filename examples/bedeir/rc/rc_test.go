package rc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/rdmacm"
)

// echo returns the callbacks of a server that sends back what it gets.
func echo(t *testing.T, h *history) Config {
	return Config{
		PreConnection: func(c *Conn) error {
			h.add("pre")
			b, err := allocBuffers(c)
			c.Data = b
			return err
		},
		Connection: func(*Conn) error { h.add("conn"); return nil },
		Completion: func(c *Conn, wc verbs.WC) error {
			if !wc.Op.IsRecv() {
				return nil
			}
			b := c.Data.(buffers)
			text := string(b.in.Bytes()[:wc.Len])
			h.add(text)
			return errors.Join(b.postReceive(c), b.send(c, text))
		},
		Disconnect: func(c *Conn, err error) {
			h.add(fmt.Sprintf("disconnect:%v", err))
			if err := c.Data.(buffers).close(); err != nil {
				t.Error(err)
			}
		},
	}
}

// greeter returns the callbacks of a client that sends one message, waits for it to come back, and leaves.
func greeter(t *testing.T, h *history, text string) Config {
	cfg := echo(t, h)
	cfg.Connection = func(c *Conn) error {
		h.add("conn")
		return c.Data.(buffers).send(c, text)
	}
	cfg.Completion = func(c *Conn, wc verbs.WC) error {
		if !wc.Op.IsRecv() {
			return nil
		}
		h.add(string(c.Data.(buffers).in.Bytes()[:wc.Len]))
		return c.Disconnect()
	}
	return cfg
}

// greet wants the server at addr to serve a client.
func greet(t *testing.T, dev *verbs.Device, addr string) {
	t.Helper()
	var h history
	if err := runClient(t, dev, addr, greeter(t, &h, "hello"), nil); err != nil {
		t.Error(err)
	}
	if got, want := h.String(), "pre conn hello disconnect:<nil>"; got != want {
		t.Errorf("client: got %q, want %q", got, want)
	}
}

// parity: B18
func TestCallbacksInOrder(t *testing.T) {
	dev := openDevice(t)
	var h history
	cfg := echo(t, &h)
	over := make(chan bool, 1)
	release := cfg.Disconnect
	cfg.Disconnect = func(c *Conn, err error) { release(c, err); over <- true }
	s := startServer(t, dev, cfg)
	greet(t, dev, s.addr)
	within(t, over, "the server's Disconnect")
	s.stop()
	if err := s.wait(t); !errors.Is(err, errStop) {
		t.Errorf("ServerLoop: got %v, want the context's cause", err)
	}
	if got, want := h.String(), "pre conn hello disconnect:<nil>"; got != want {
		t.Errorf("server: got %q, want %q", got, want)
	}
}

func TestSeveralClientsAtOnce(t *testing.T) {
	dev := openDevice(t)
	var h history
	s := startServer(t, dev, echo(t, &h))
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() { greet(t, dev, s.addr) })
	}
	clients.Wait()
}

// One library carries connections of clients and of servers, all in one protection domain.
func TestOneLibraryForAll(t *testing.T) {
	dev := openDevice(t)
	var h history
	addr := make(chan netip.AddrPort, 1)
	var domains sync.Map
	cfg := echo(t, &h)
	alloc := cfg.PreConnection
	cfg.PreConnection = func(c *Conn) error { domains.Store(c.QP().PD(), true); return alloc(c) }
	cfg.Listening = func(a netip.AddrPort) { addr <- a }
	cfg.Connection = func(c *Conn) error {
		if !c.RemoteAddr().IsValid() {
			return errors.New("the peer has no address")
		}
		return c.Disconnect()
	}
	lib := initLibrary(t, dev, cfg)
	ctx, stop := stoppable(t)
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := lib.ServerLoop(ctx, "127.0.0.1:0"); !errors.Is(err, errStop) {
			t.Error(err)
		}
	})
	a := within(t, addr, "the server's address")
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			if err := lib.ClientLoop(ctx, a.String(), nil); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	stop()
	loops.Wait()
	n := 0
	domains.Range(func(pd, _ any) bool {
		if n++; pd != lib.GetPD() {
			t.Error("a connection has another domain than GetPD returns")
		}
		return true
	})
	if n != 1 {
		t.Errorf("%d protection domains, want 1", n)
	}
}

// parity: B18
func TestNilCallbacks(t *testing.T) {
	dev := openDevice(t)
	s := startServer(t, dev, Config{})
	ctx, stop := stoppable(t)
	lib := initLibrary(t, dev, Config{Connection: func(*Conn) error { stop(); return nil }})
	if err := lib.ClientLoop(ctx, s.addr, nil); !errors.Is(err, errStop) {
		t.Errorf("got %v, want the context's cause", err)
	}
	// A client without any callback stays until the server leaves.
	end := make(chan error, 1)
	all := initLibrary(t, dev, Config{})
	ctx, _ = stoppable(t)
	go func() { end <- all.ClientLoop(ctx, s.addr, nil) }()
	greeted := make(chan struct{})
	h := greeter(t, &history{}, "x")
	h.Connection = func(c *Conn) error { close(greeted); return c.Disconnect() }
	if err := runClient(t, dev, s.addr, h, nil); err != nil {
		t.Error(err)
	}
	within(t, greeted, "a connection")
	s.stop()
	_ = within(t, end, "the client") // in order or reset, depending on how far its connection was
}

func TestClientData(t *testing.T) {
	dev := openDevice(t)
	s := startServer(t, dev, Config{})
	type mine struct{ n int }
	data := &mine{}
	err := runClient(t, dev, s.addr, Config{Connection: func(c *Conn) error {
		c.Data.(*mine).n++
		return c.Disconnect()
	}}, data)
	if err != nil || data.n != 1 {
		t.Errorf("error %v, %d calls", err, data.n)
	}
}

// An error of a callback ends its connection only.
func TestCallbackErrors(t *testing.T) {
	errCallback := errors.New("cannot")
	fails := func(*Conn) error { return errCallback }
	dev := openDevice(t)
	for name, breakIt := range map[string]func(*Config){
		"pre-connection": func(cfg *Config) { cfg.PreConnection = fails },
		"connection":     func(cfg *Config) { cfg.Connection = fails },
		"completion": func(cfg *Config) {
			cfg.Completion = func(*Conn, verbs.WC) error { return errCallback }
		},
	} {
		t.Run("client "+name, func(t *testing.T) {
			var h history
			s := startServer(t, dev, echo(t, &h))
			cfg := greeter(t, &history{}, "hi")
			ended := make(chan error, 2)
			breakIt(&cfg)
			cfg.Disconnect = func(c *Conn, err error) {
				if b, ok := c.Data.(buffers); ok {
					_ = b.close()
				}
				ended <- err
			}
			err := runClient(t, dev, s.addr, cfg, nil)
			if !errors.Is(err, errCallback) || !strings.Contains(err.Error(), s.addr) {
				t.Errorf("got %v, want the callback's error with the address %s", err, s.addr)
			}
			if got := <-ended; !errors.Is(got, errCallback) || len(ended) != 0 {
				t.Errorf("Disconnect got %v, and %d calls more", got, len(ended))
			}
			greet(t, dev, s.addr)
		})
		t.Run("server "+name, func(t *testing.T) {
			var h history
			ended := make(chan error, 10)
			cfg := echo(t, &h)
			good := cfg
			breakIt(&cfg)
			first := true // callbacks of the two clients do not overlap
			s := startServer(t, dev, Config{
				PreConnection: func(c *Conn) error {
					if first {
						return cfg.PreConnection(c)
					}
					return good.PreConnection(c)
				},
				Connection: func(c *Conn) error {
					if first {
						return cfg.Connection(c)
					}
					return nil
				},
				Completion: func(c *Conn, wc verbs.WC) error {
					if first {
						return cfg.Completion(c, wc)
					}
					return good.Completion(c, wc)
				},
				Disconnect: func(c *Conn, err error) {
					if b, ok := c.Data.(buffers); ok {
						_ = b.close()
					}
					first = false
					ended <- err
				},
			})
			err := runClient(t, dev, s.addr, greeter(t, &history{}, "hi"), nil)
			if _, rejected := errors.AsType[*verbs.RejectedError](err); rejected != (name == "pre-connection") {
				t.Errorf("the client got %v", err)
			}
			if got := within(t, ended, "Disconnect"); !errors.Is(got, errCallback) {
				t.Errorf("Disconnect got %v", got)
			}
			greet(t, dev, s.addr)
		})
	}
}

// parity: B18
func TestDieEndsTheLoop(t *testing.T) {
	dev := openDevice(t)
	errDisk := errors.New("the disk is gone")
	var h history
	cfg := echo(t, &h)
	cfg.Completion = func(*Conn, verbs.WC) error { return fmt.Errorf("while writing: %w", Die("no more: %w", errDisk)) }
	s := startServer(t, dev, cfg)
	_ = runClient(t, dev, s.addr, greeter(t, &history{}, "hi"), nil)
	err := s.wait(t)
	if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "while writing: no more: the disk is gone") {
		t.Errorf("got %v", err)
	}
	if got := h.String(); !strings.Contains(got, "disconnect:while writing") {
		t.Errorf("callbacks: %s", got)
	}
}

func TestUnknownEventsAreLogged(t *testing.T) {
	dev := openDevice(t)
	log := make(capture, 10)
	var h history
	cfg := echo(t, &h)
	cfg.Logger = slog.New(log)
	cfg.Connection = func(c *Conn) error {
		return errors.Join(c.id.WriteEvent(77, nil), c.id.WriteEvent(rdmacm.EventTimewaitExit, nil))
	}
	s := startServer(t, dev, cfg)
	greet(t, dev, s.addr)
	for _, want := range []string{"77", "15"} {
		if r := within(t, log, "a log message"); attr(r, "type") != want {
			t.Errorf("logged %s %s, want event %s", r.Message, attr(r, "type"), want)
		}
	}
}

func TestUnknownEventOfTheListener(t *testing.T) {
	log := make(capture, 10)
	lib := initLibrary(t, openDevice(t), Config{Logger: slog.New(log)})
	ctx, stop := stoppable(t)
	ch := rdmacm.NewEventChannel(nil)
	defer shut(t, ch)
	id := must(lib.listen(ctx, ch, "127.0.0.1:0"))(t)
	s := &server{lib: lib, ch: ch, free: make(chan struct{}, 1)}
	for range 3 { // more than there are places
		if err := id.WriteEvent(1000, nil); err != nil {
			t.Fatal(err)
		}
	}
	end := make(chan error, 1)
	go func() { end <- s.loop(ctx) }()
	for range 3 {
		if r := within(t, log, "a log message"); attr(r, "event") != "UNKNOWN EVENT" {
			t.Errorf("logged %v", r)
		}
	}
	stop()
	if err := <-end; !errors.Is(err, errStop) {
		t.Error(err)
	}
}

func TestListenerFailureEndsTheLoop(t *testing.T) {
	lib := initLibrary(t, openDevice(t), Config{})
	ctx, _ := stoppable(t)
	ch := rdmacm.NewEventChannel(nil)
	defer shut(t, ch)
	id := must(lib.listen(ctx, ch, "127.0.0.1:0"))(t)
	if err := id.WriteEvent(rdmacm.EventDeviceRemoval, nil); err != nil {
		t.Fatal(err)
	}
	s := &server{lib: lib, ch: ch, free: make(chan struct{}, 1)}
	err := s.loop(ctx)
	if e, ok := errors.AsType[*Error](err); !ok || e.Op != opListen || !strings.Contains(err.Error(), "RDMA_CM_EVENT_DEVICE_REMOVAL") {
		t.Errorf("got %v", err)
	}
}

// freePort returns an address at which nobody listens.
func freePort(t *testing.T, dev *verbs.Device) string {
	t.Helper()
	l := must(verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	defer shut(t, l)
	return l.Addr().String()
}

// parity: B47
func TestNoServer(t *testing.T) {
	dev := openDevice(t)
	addr := freePort(t, dev)
	err := runClient(t, dev, addr, Config{}, nil)
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Peer != addr || !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(err.Error(), "connect to "+addr+": ") {
		t.Errorf("got %v", err)
	}
}

func TestBadAddresses(t *testing.T) {
	dev := openDevice(t)
	lib := initLibrary(t, dev, Config{})
	ctx, _ := stoppable(t)
	for _, addr := range []string{"", "127.0.0.1", "127.0.0.1:nothing"} {
		if err := lib.ClientLoop(ctx, addr, nil); !isAbout(err, addr) {
			t.Errorf("ClientLoop(%q): %v", addr, err)
		}
		if err := lib.ServerLoop(ctx, addr); !isAbout(err, addr) {
			t.Errorf("ServerLoop(%q): %v", addr, err)
		}
	}
	s := startServer(t, dev, Config{})
	if err := lib.ServerLoop(ctx, s.addr); !errors.Is(err, syscall.EADDRINUSE) || !isAbout(err, s.addr) {
		t.Errorf("ServerLoop at a taken address: %v", err)
	}
}

// isAbout reports whether err is this package's and names addr.
func isAbout(err error, addr string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Peer == addr
}

func TestServerStopEndsConnections(t *testing.T) {
	dev := openDevice(t)
	up := make(chan bool, 1)
	ended := make(chan error, 1)
	s := startServer(t, dev, Config{
		Connection: func(*Conn) error { up <- true; return nil },
		Disconnect: func(_ *Conn, err error) { ended <- err },
	})
	lib := initLibrary(t, dev, Config{})
	ctx, _ := stoppable(t)
	client := make(chan error, 1)
	go func() { client <- lib.ClientLoop(ctx, s.addr, nil) }()
	within(t, up, "the connection")
	s.stop()
	if err := s.wait(t); !errors.Is(err, errStop) {
		t.Errorf("ServerLoop: %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, errStop) {
			t.Errorf("Disconnect got %v", err)
		}
	default:
		t.Error("ServerLoop returned before Disconnect was called")
	}
	if err := within(t, client, "the client"); err != nil {
		t.Errorf("ClientLoop: %v, though the server left in order", err)
	}
}

// What the peer sent before it left is delivered before Disconnect is called.
func TestCompletionsBeforeDisconnect(t *testing.T) {
	dev := openDevice(t)
	s := startServer(t, dev, Config{
		Connection: func(c *Conn) error {
			for range queueDepth {
				if _, err := c.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled}}); err != nil {
					return err
				}
			}
			return c.Disconnect()
		},
	})
	for range 20 {
		var h history
		err := runClient(t, dev, s.addr, Config{
			PreConnection: func(c *Conn) error {
				_, err := c.QP().PostRecv(make([]verbs.RecvWR, queueDepth))
				return err
			},
			Connection: func(*Conn) error { h.add("conn"); return nil },
			Completion: func(*Conn, verbs.WC) error { h.add("recv"); return nil },
			Disconnect: func(_ *Conn, err error) { h.add(fmt.Sprint(err)) },
		}, nil)
		if want := "conn" + strings.Repeat(" recv", queueDepth) + " <nil>"; err != nil || h.String() != want {
			t.Fatalf("error %v, callbacks %q, want %q", err, &h, want)
		}
	}
}

func TestFailedCompletionEndsTheConnection(t *testing.T) {
	dev := openDevice(t)
	s := startServer(t, dev, Config{})
	faulty := openFaulty(t, fault.Rule{
		Match: fault.Match{At: fault.AtSend, Nth: 1}, Do: fault.Status(verbs.StatusRemAccessErr),
	})
	err := runClient(t, faulty, s.addr, Config{
		Connection: func(c *Conn) error {
			_, err := c.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled}})
			return err
		},
		Completion: func(_ *Conn, wc verbs.WC) error {
			t.Errorf("delivered: %+v", wc)
			return nil
		},
	}, nil)
	if !errors.Is(err, verbs.StatusRemAccessErr) {
		t.Errorf("got %v", err)
	}
}

// A server that cannot make queues turns the client away and says so in the log.
func TestNoQueuesForAClient(t *testing.T) {
	dev := openDevice(t)
	faulty := openFaulty(t, fault.Rule{
		Match: fault.Match{At: fault.AtCreateCQ}, Do: fault.Fail(errors.New("no room")),
	})
	log := make(capture, 10)
	var h history
	cfg := echo(t, &h)
	cfg.Logger = slog.New(log)
	s := startServer(t, faulty, cfg)
	err := runClient(t, dev, s.addr, Config{}, nil)
	if _, rejected := errors.AsType[*verbs.RejectedError](err); !rejected {
		t.Errorf("the client got %v", err)
	}
	if r := within(t, log, "a log message"); !strings.Contains(attr(r, "error"), "no room") {
		t.Errorf("logged %v", r)
	}
}

// parity: B46
func TestIdle(t *testing.T) {
	dev := openDevice(t)
	ended := make(chan error, 1)
	s := startServer(t, dev, Config{
		Idle:       20 * time.Millisecond,
		Disconnect: func(_ *Conn, err error) { ended <- err },
	})
	if err := runClient(t, dev, s.addr, Config{}, nil); err != nil {
		t.Errorf("ClientLoop: %v, though the server left in order", err)
	}
	if err := within(t, ended, "Disconnect"); err == nil || !strings.Contains(err.Error(), "20ms") {
		t.Errorf("Disconnect got %v", err)
	}
}

// The client beyond the bound waits until another one leaves.
func TestMaxConns(t *testing.T) {
	dev := openDevice(t)
	var h history
	s := startServer(t, dev, Config{
		MaxConns:      1,
		PreConnection: func(*Conn) error { h.add("in"); return nil },
		Disconnect:    func(*Conn, error) { h.add("out") },
	})
	var clients sync.WaitGroup
	for range 5 {
		clients.Go(func() {
			if err := runClient(t, dev, s.addr, Config{Connection: (*Conn).Disconnect}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	s.stop()
	_ = s.wait(t)
	if want := strings.TrimSpace(strings.Repeat("in out ", 5)); h.String() != want {
		t.Errorf("got %q, want %q", &h, want)
	}
}

// A peer that vanishes at any point ends its own connection only.
func TestLostClients(t *testing.T) {
	dev := openDevice(t)
	var h history
	s := startServer(t, dev, echo(t, &h))
	for i := range 30 {
		other := must(verbsPeer(t, dev))(t)
		ctx, cancel := context.WithTimeout(t.Context(), testLimit)
		conn, err := verbs.Dial(ctx, other.qp, netip.MustParseAddrPort(s.addr), verbs.ConnParam{})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_ = conn.Disconnect(t.Context())
		}
		other.close(t)
	}
	greet(t, dev, s.addr)
}

// verbsEnd is a peer without this library.
type verbsEnd struct {
	pd *verbs.PD
	cq *verbs.CQ
	qp *verbs.QP
}

func verbsPeer(t *testing.T, dev *verbs.Device) (*verbsEnd, error) {
	t.Helper()
	e := &verbsEnd{pd: must(dev.AllocPD())(t), cq: must(dev.CreateCQ(queueDepth))(t)}
	var err error
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq})
	return e, err
}

func (e *verbsEnd) close(t *testing.T) {
	t.Helper()
	shut(t, e.qp)
	shut(t, e.cq)
	shut(t, e.pd)
}

func TestCloseWhileInUse(t *testing.T) {
	lib := initLibrary(t, openDevice(t), Config{})
	mr := must(lib.GetPD().AllocMR(1, 0))(t)
	if err := lib.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	shut(t, mr)
}
