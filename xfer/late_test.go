package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest/memdev"
)

// commitFile is a file in memory during whose Commit something happens.
type commitFile struct {
	*memFile
	during func() error
}

func (f commitFile) Commit() error { return errors.Join(f.during(), f.memFile.Commit()) }

// What happens while a file gets its name, on either side, makes no failure of a
// file that has it then: what is reported is what is in the directory.
// parity: B44
func TestCommitIsNotCutShort(t *testing.T) {
	for name, c := range map[string]struct {
		stopReceiver, stopSender bool
		takes                    time.Duration
		fails                    error
		sender                   Code // 0: success
	}{
		"takes longer than the timeout": {takes: time.Hour},
		"the receiver is to end":        {stopReceiver: true, takes: time.Second},
		"the sender is to end":          {stopSender: true, takes: time.Second, sender: CodeCanceled},
		"the sender times out":          {takes: 3 * time.Hour, sender: CodeTimeout},
		"late, and fails":               {stopReceiver: true, takes: time.Second, fails: errors.New("quota"), sender: CodeStorage},
	} {
		for _, p := range []Protocol{Basic, Fast} {
			t.Run(fmt.Sprintf("%s, %v", name, p), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rctx, stopReceiver := context.WithCancel(t.Context())
					sctx, stopSender := context.WithCancel(t.Context())
					defer stopReceiver()
					defer stopSender()
					file := commitFile{&memFile{disk: instant}, func() error {
						if c.stopReceiver {
							stopReceiver()
						}
						if c.stopSender {
							stopSender()
						}
						wait(c.takes)
						return c.fails
					}}
					dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
					l := must(verbs.Listen(dev, loopback))(t)
					r := Receiver{Timeout: 10 * time.Second, Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }}
					received := make(chan error, 1)
					go func() {
						_, err := r.ServeOne(rctx, l)
						received <- err
					}()
					s := Sender{Protocol: p, Chunk: minChunk, Timeout: 2 * time.Hour}
					_, err := s.Send(sctx, dev, l.Addr(), sourceOf("f", noise(3*minChunk)))
					rerr := <-received
					switch {
					case c.sender == 0 && err != nil:
						t.Errorf("the sender says %v", err)
					case c.sender == CodeCanceled || c.sender == CodeTimeout:
						wantCode(t, err, c.sender, false, "all was sent", "may have the file under its name")
					case c.sender != 0:
						wantCode(t, err, c.sender, true)
					}
					if c.fails != nil {
						wantCode(t, rerr, CodeStorage, false, "quota")
					} else if rerr != nil {
						t.Errorf("the receiver says %v", rerr)
					}
					if file.discarded != (c.fails != nil) {
						t.Errorf("discarded: %v", file.discarded)
					}
					if err := errors.Join(l.Close(), dev.Close()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A side that cannot say its last words still knows them.
// parity: B45
func TestLastWordsFail(t *testing.T) {
	broken := errors.New("no more posts")
	for name, c := range map[string]struct {
		queue, nth int // the post that fails
		src        func(Source) Source
		file       error // of Commit
		sender     Code
		receiver   Code
	}{
		"sender":   {queue: 1, nth: 2, src: func(s Source) Source { s.Data = badSource{s.Data, 0, io.ErrNoProgress}; return s }, sender: CodeSource, receiver: CodeLost},
		"receiver": {queue: 2, nth: 3, src: func(s Source) Source { return s }, file: errors.New("quota"), sender: CodeLost, receiver: CodeStorage},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
					{Match: fault.Match{At: fault.AtSend, Queue: c.queue, Nth: c.nth}, Do: fault.Fail(broken)}}})
				l := must(verbs.Listen(dev, loopback))(t)
				file := commitFile{&memFile{disk: instant}, func() error { return c.file }}
				r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }}
				received := make(chan error, 1)
				go func() {
					_, err := r.ServeOne(t.Context(), l)
					received <- err
				}()
				s := Sender{Protocol: Fast, Chunk: minChunk, Digest: NoDigest}
				_, err := s.Send(t.Context(), dev, l.Addr(), c.src(sourceOf("f", noise(minChunk))))
				wantCode(t, err, c.sender, false)
				wantCode(t, <-received, c.receiver, false)
				if err := errors.Join(l.Close(), dev.Close()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// slowFile is a file in memory whose writes take a second.
type slowFile struct{ *memFile }

func (f slowFile) WriteAt(b []byte, off int64) (int, error) {
	wait(time.Second)
	return f.memFile.WriteAt(b, off)
}

// A connection that breaks when all has come, and the disk is not through with it,
// leaves the receiver with a whole file or with none, and never waiting.
func TestBrokenBeforeCommit(t *testing.T) {
	for _, d := range []Digest{NoDigest, SHA256} {
		for nth := 1; nth <= 4; nth++ { // LAYOUT, CREDIT, DONE; none
			t.Run(fmt.Sprintf("%v, post %d", d, nth), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
						{Match: fault.Match{At: fault.AtSend, Queue: 2, Nth: nth}, Do: fault.Fail(errors.New("no more posts"))}}})
					l := must(verbs.Listen(dev, loopback))(t)
					file := slowFile{&memFile{disk: instant}}
					r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return file, nil }}
					received := make(chan error, 1)
					go func() {
						res, err := r.ServeOne(t.Context(), l)
						if err == nil && res.Size != minChunk {
							t.Errorf("the result has %d bytes", res.Size)
						}
						received <- err
					}()
					s := Sender{Protocol: Fast, Chunk: minChunk, Digest: d}
					_, err := s.Send(t.Context(), dev, l.Addr(), sourceOf("f", noise(minChunk)))
					rerr := <-received
					if file.committed != (rerr == nil) || file.discarded == file.committed {
						t.Errorf("committed %v, discarded %v, but the receiver says %v", file.committed, file.discarded, rerr)
					}
					if nth == 4 && err != nil || nth < 4 && err == nil {
						t.Errorf("the sender says %v", err)
					}
					if err := errors.Join(l.Close(), dev.Close()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// An observer that was never told of a transfer is not told of its end.
// parity: B49
func TestNoFinishWithoutStart(t *testing.T) {
	dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{
		{Match: fault.Match{At: fault.AtRecv, Queue: 1, Nth: 2}, Do: fault.Fail(errors.New("no more receives"))}}})
	l := must(verbs.Listen(dev, loopback))(t)
	r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
		return &memFile{disk: instant}, nil
	}}
	received := make(chan error, 1)
	go func() {
		_, err := r.ServeOne(t.Context(), l)
		received <- err
	}()
	watcher := &recorder{t: t}
	s := Sender{Protocol: Fast, Progress: func() Progress { return watcher }}
	_, err := s.Send(testContext(t), dev, l.Addr(), sourceOf("f", nil))
	wantCode(t, err, CodeLost, false, "no more receives")
	wantCode(t, <-received, CodeLost, false)
	if watcher.started+watcher.finished != 0 {
		t.Errorf("%d started, %d finished", watcher.started, watcher.finished)
	}
	if err := errors.Join(l.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// A receiver that only repeats itself does not keep a sender waiting.
// parity: B41
func TestEmptyCredits(t *testing.T) {
	ctx := testContext(t)
	p := newRaw(t, false)
	l := must(verbs.Listen(p.dev, loopback))(t)
	sent := make(chan error, 1)
	dev := device(t, iwarp.Config{})
	go func() {
		s := Sender{Protocol: Fast, Chunk: minChunk, Window: 1, Digest: NoDigest}
		_, err := s.Send(ctx, dev, l.Addr(), sourceOf("f", noise(2*minChunk)))
		sent <- err
	}()
	req := must(l.Accept(ctx))(t)
	p.conn = must(req.Accept(ctx, p.qp, verbs.ConnParam{PrivateData: appendAnswer(nil, answer{protocol: Fast, digest: NoDigest, chunk: minChunk, buffers: 1})}))(t)
	p.fast(fastOpen)
	region := p.region()
	p.send(appendFast(nil, fastMessage{kind: fastLayout, length: minChunk, number: region.Addr, word: region.RKey, count: 1}))
	p.fast(fastChunk)
	p.send(appendFast(nil, fastMessage{kind: fastCredit, number: 0}))
	if v, _ := parseErrorMessage(p.fast(fastFailed).tail); v.code != CodeProtocol {
		t.Errorf("told %+v", v)
	}
	wantCode(t, <-sent, CodeProtocol, false, "gives 0 buffers back in all, after 0")
	p.leave()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestTimeoutBoundsConnecting sends to a port that accepts connections and says nothing, with a device whose own limit for
// connecting is much shorter: the sender waits for as long as its Timeout says, and its error names that time.
func TestTimeoutBoundsConnecting(t *testing.T) {
	silent := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { silent.Close() })
	dev := device(t, iwarp.Config{HandshakeTimeout: time.Millisecond})
	const timeout = 300 * time.Millisecond
	begin := time.Now()
	_, err := (&Sender{Timeout: timeout}).Send(testContext(t), dev, netip.MustParseAddrPort(silent.Addr().String()), sourceOf("f", noise(10)))
	if took := time.Since(begin); took < timeout {
		t.Errorf("it was given up after %v, want %v", took, timeout)
	}
	wantCode(t, err, CodeTimeout, false, "within 300ms")
	if s := err.Error(); strings.Contains(s, "1ms") {
		t.Errorf("the error names another limit: %s", s)
	}
}
