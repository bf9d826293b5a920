package xfer

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"cinnabar/verbs/iwarp"
)

// plainHello is the private data of a request for a transfer of one lane.
var plainHello = appendHello(nil, hello{fast: true, choice: true, digest: NoDigest, chunk: minChunk, buffers: 1, size: 1 << 20})

// rawFirst begins a transfer of 40 MiB and returns the reference for its second lane. The transfer asks for so many lanes, and must be granted as many as granted.
func rawFirst(t *testing.T, srv *server, lanes, granted uint8) (first *rawPeer, second laneRef) {
	t.Helper()
	first = dialRaw(t, srv.addr, appendHello(nil, hello{fast: true, choice: true, lanes: lanes, digest: NoDigest, chunk: minChunk, buffers: 1, size: 40 << 20}))
	ans := must(parseAnswer(first.conn.PrivateData()))(t)
	if max(ans.lanes, 1) != granted {
		t.Fatalf("%d lanes were granted, want %d", ans.lanes, granted)
	}
	first.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}))
	first.fast(fastLayout)
	ans.transfer.lane = 1
	return first, ans.transfer
}

// A further lane takes a free place, but not the last one, and no other connection gives way to it, whether or not the request has the secret.
func TestLanesKeepNoTransferOut(t *testing.T) {
	for others, refused := range []string{1: "", 2: "is kept for a transfer", 3: "is kept for a transfer"} {
		if others == 0 {
			continue
		}
		srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxConnections: 4}, DirOptions{})
		first, ref := rawFirst(t, srv, 2, 2)
		var waiting []*rawPeer
		for range others {
			waiting = append(waiting, dialRaw(t, srv.addr, plainHello))
		}
		wrong := ref
		wrong.secret[0] ^= 1
		err := rawLane(t, srv.addr, hello{join: &wrong, digest: NoDigest, chunk: minChunk, buffers: 1})
		if err == nil {
			t.Fatal("a lane without the secret is accepted")
		}
		wantText(t, err.Error(), "another secret")
		err = rawLane(t, srv.addr, hello{join: &ref, digest: NoDigest, chunk: minChunk, buffers: 1})
		switch {
		case refused == "" && err != nil:
			t.Errorf("beside %d other connections the lane is refused: %v", others, err)
		case refused != "" && !errors.Is(err, CodeBusy):
			t.Errorf("beside %d other connections the lane gets %v", others, err)
		case refused != "":
			wantText(t, err.Error(), refused)
		}
		for i, p := range waiting {
			p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte{'a' + byte(i)}}))
			p.fast(fastLayout)
			p.leave()
		}
		first.leave()
	}
}

// agreedHandler passes the lines about transfers that are agreed on to a function.
type agreedHandler struct {
	slog.Handler
	n  *atomic.Int32
	do func(n int32)
}

func (agreedHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h agreedHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "sending" {
		h.do(h.n.Add(1))
	}
	return nil
}

// A lane never gives way, because its transfer has begun: also while the lane has not sent its OPEN.
func TestLanesNeverGiveWay(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxConnections: 4}, DirOptions{})
	data := noise(24 << 20)
	src := chosenOf(data, 0)
	src.Concurrent = true
	agreed, goOn := make(chan struct{}), make(chan struct{})
	src.Data = readHook{src.Data, func(int64) { <-goOn }}
	log := slog.New(agreedHandler{slog.DiscardHandler, &atomic.Int32{}, func(n int32) {
		if n == 2 { // the second lane
			close(agreed)
			<-goOn
		}
	}})
	dev := device(t, iwarp.Config{})
	sent := make(chan error, 1)
	var res Result
	go func() {
		var err error
		res, err = (&Sender{Lanes: 2, Logger: log}).Send(ctx, dev, srv.addr, src)
		sent <- err
	}()
	select {
	case <-agreed:
	case err := <-sent:
		t.Fatalf("the transfer ends early: %v", err)
	}
	for range 3 { // the last one is accepted when another connection has given way to it
		dialRaw(t, srv.addr, plainHello)
	}
	close(goOn)
	if err := <-sent; err != nil {
		t.Errorf("the transfer fails beside new connections: %v", err)
	}
	if res.Size != int64(len(data)) {
		t.Errorf("got %+v", res)
	}
	srv.wantFile("f", data)
}
