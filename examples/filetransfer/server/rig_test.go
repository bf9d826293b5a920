package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	ft "cinnabar/examples/filetransfer"
	"cinnabar/examples/filetransfer/internal/fttest"
	"cinnabar/examples/filetransfer/internal/journal"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines passes what a program prints to the test, line by line.
type lines struct {
	mu   sync.Mutex
	part []byte // +checklocks:mu
	seen chan string
}

func newLines() *lines { return &lines{seen: make(chan string, 1000)} } // more than any program here prints

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, b...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.seen <- string(line)
		l.part = rest
	}
}

// wait returns the next line that contains text.
func (l *lines) wait(t *testing.T, text string) string {
	t.Helper()
	timer := time.NewTimer(fttest.Limit)
	defer timer.Stop()
	for {
		select {
		case line := <-l.seen:
			if strings.Contains(line, text) {
				return line
			}
		case <-timer.C:
			t.Fatalf("no line with %q within %v", text, fttest.Limit)
		}
	}
}

// testServer is a server in a goroutine.
type testServer struct {
	dir      string
	addr     netip.AddrPort
	journal  journal.Journal
	out, err *lines
	cancel   context.CancelFunc
	end      chan error
}

func startServer(t *testing.T) *testServer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ts := &testServer{dir: filepath.Join(t.TempDir(), "in"), out: newLines(), err: newLines(), cancel: cancel, end: make(chan error, 1)}
	if err := os.Mkdir(ts.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	addr := make(chan netip.AddrPort, 1)
	s := &server{out: ts.out, err: ts.err, root: fttest.Must(os.OpenRoot(ts.dir))(t), listening: func(a netip.AddrPort) { addr <- a }}
	dev := ts.journal.Wrap(fttest.Must(iwarp.Open(iwarp.Config{}))(t))
	go func() { ts.end <- s.serveOver(ctx, dev, "127.0.0.1:0") }()
	t.Cleanup(func() {
		ts.stop(t)
		fttest.Shut(t, dev)
		fttest.Shut(t, s.root)
	})
	select {
	case ts.addr = <-addr:
	case err := <-ts.end:
		t.Fatal(err)
	}
	return ts
}

// stop interrupts the server and waits for its end.
func (ts *testServer) stop(t *testing.T) {
	t.Helper()
	ts.cancel()
	if err, ok := <-ts.end; ok && !errors.Is(err, context.Canceled) {
		t.Errorf("the server ended with %v", err)
	}
	ts.end = make(chan error)
	close(ts.end) // for a second stop
}

// files returns the names in the server's directory and beside it.
func (ts *testServer) files(t *testing.T) string {
	t.Helper()
	var names []string
	for _, dir := range []string{ts.dir, filepath.Dir(ts.dir)} {
		for _, e := range fttest.Must(os.ReadDir(dir))(t) {
			if e.Name() != filepath.Base(ts.dir) {
				names = append(names, e.Name())
			}
		}
	}
	return strings.Join(names, " ")
}

// peer is a client made by hand, which can misbehave.
type peer struct {
	t    *testing.T
	ctx  context.Context
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	conn *verbs.Conn
	msgs *verbs.MR // three receives
	data *verbs.MR
	to   verbs.RemoteAddr // from the server's first message
	raw  []byte           // the latest message
}

const peerReceives = 3

// dial connects a peer.
func (ts *testServer) dial(t *testing.T) *peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fttest.Limit)
	t.Cleanup(cancel)
	p := &peer{t: t, ctx: ctx, dev: fttest.Must(iwarp.Open(iwarp.Config{ConfirmWrites: true}))(t)}
	p.pd = fttest.Must(p.dev.AllocPD())(t)
	p.cq = fttest.Must(p.dev.CreateCQ(64))(t)
	p.qp = fttest.Must(p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq}))(t)
	p.msgs = fttest.Must(p.pd.AllocMR(peerReceives*ft.MessageLen, verbs.LocalWrite))(t)
	p.data = fttest.Must(p.pd.AllocMR(ft.BufferSize+1, 0))(t)
	t.Cleanup(p.close)
	for i := range peerReceives {
		p.receive(uint64(i))
	}
	p.conn = fttest.Must(verbs.Dial(ctx, p.qp, ts.addr, verbs.ConnParam{}))(t)
	return p
}

func (p *peer) close() {
	p.t.Helper()
	for _, c := range []interface{ Close() error }{p.qp, p.msgs, p.data, p.cq, p.pd, p.dev} {
		fttest.Shut(p.t, c)
	}
}

func (p *peer) receive(id uint64) {
	p.t.Helper()
	wr := verbs.RecvWR{ID: id, SGL: []verbs.SGE{p.msgs.SGE(int(id)*ft.MessageLen, ft.MessageLen)}}
	if _, err := p.qp.PostRecv([]verbs.RecvWR{wr}); err != nil {
		p.t.Fatal(err)
	}
}

// want waits for the server's next message.
func (p *peer) want(id ft.MessageID) {
	p.t.Helper()
	for {
		wc := make([]verbs.WC, 1)
		if _, err := p.cq.Wait(p.ctx, wc); err != nil {
			p.t.Fatalf("waiting for message %d: %v", id, err)
		}
		if err := wc[0].Err(); err != nil {
			p.t.Fatalf("waiting for message %d: %v", id, err)
		}
		if !wc[0].Op.IsRecv() {
			continue
		}
		p.raw = bytes.Clone(p.msgs.Bytes()[int(wc[0].ID)*ft.MessageLen:][:wc[0].Len])
		p.receive(wc[0].ID)
		m, ok := ft.ParseMessage(p.raw)
		if !ok || m.ID != id {
			p.t.Fatalf("got message %+v (%t), want %d", m, ok, id)
		}
		p.to = m.Buffer
		return
	}
}

// write writes b and says that it is n bytes.
func (p *peer) write(b []byte, n int) {
	p.t.Helper()
	wr := verbs.SendWR{Op: verbs.OpWriteImm, Flags: verbs.Signaled, Remote: p.to, Imm: uint32(n)}
	if copy(p.data.Bytes(), b); len(b) > 0 {
		wr.SGL = []verbs.SGE{p.data.SGE(0, len(b))}
	}
	p.post(wr)
}

func (p *peer) post(wr verbs.SendWR) {
	p.t.Helper()
	if _, err := p.qp.PostSend([]verbs.SendWR{wr}); err != nil && !errors.Is(err, verbs.ErrDisconnected) {
		p.t.Fatal(err)
	}
}

// name writes a file name with its NUL.
func (p *peer) name(s string) { p.t.Helper(); p.write([]byte(s+"\x00"), len(s)+1) }

// refused waits for the server to end the connection.
func (p *peer) refused() {
	p.t.Helper()
	select {
	case <-p.conn.Done():
	case <-p.ctx.Done():
		p.t.Fatal("the server does not end the connection")
	}
}

// transfer sends a small file in the proper way.
func (ts *testServer) transfer(t *testing.T, name string) {
	t.Helper()
	p := ts.dial(t)
	p.want(ft.MsgMR)
	p.name(name)
	p.want(ft.MsgReady)
	p.write([]byte(name), len(name))
	p.want(ft.MsgReady)
	p.write(nil, 0)
	p.want(ft.MsgDone)
	if err := p.conn.Disconnect(p.ctx); err != nil {
		t.Error(err)
	}
	ts.out.wait(t, "finished transferring "+name)
	if got := string(fttest.Must(os.ReadFile(filepath.Join(ts.dir, name)))(t)); got != name {
		t.Errorf("%s has %q", name, got)
	}
}
