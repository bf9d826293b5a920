package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"cinnabar/examples/bedeir/rc"
	ft "cinnabar/examples/filetransfer"
	"cinnabar/examples/filetransfer/internal/fttest"
	"cinnabar/examples/filetransfer/internal/journal"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write is one of the client's writes, as its server saw it.
type write struct {
	Imm  uint32
	Data string
}

// script is a server that answers each write with the next of its messages, whatever was written.
type script struct {
	t       *testing.T
	answers [][]byte // the first one is sent on connection; nil ends the connection
	writes  []write
	buffer  *verbs.MR
	out     *verbs.MR
}

// message is the script's entry for a proper message of the server's region.
func message(id ft.MessageID) []byte { return ft.AppendMessage(nil, ft.Message{ID: id}) }

// start runs the script for one client. It returns the server's address, and a channel that is closed at its end.
func (s *script) start(ctx context.Context) (string, <-chan struct{}) {
	s.t.Helper()
	// The device is closed only after the client has ended: closing cuts short what a connection has to say at its end.
	dev := fttest.Must(iwarp.Open(iwarp.Config{}))(s.t)
	s.t.Cleanup(func() { fttest.Shut(s.t, dev) })
	addr, end := make(chan netip.AddrPort, 1), make(chan struct{})
	served, done := context.WithCancel(ctx)
	lib := fttest.Must(rc.Init(dev, rc.Config{
		PreConnection: s.prepare,
		Connection:    s.next,
		Completion:    s.completion,
		Disconnect:    func(*rc.Conn, error) { done() },
		Listening:     func(a netip.AddrPort) { addr <- a },
	}))(s.t)
	s.buffer = fttest.Must(lib.GetPD().AllocMR(ft.BufferSize, verbs.LocalWrite|verbs.RemoteWrite))(s.t)
	s.out = fttest.Must(lib.GetPD().AllocMR(ft.MessageLen, 0))(s.t)
	go func() {
		defer close(end)
		if err := lib.ServerLoop(served, "127.0.0.1:0"); !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
		fttest.Shut(s.t, s.buffer)
		fttest.Shut(s.t, s.out)
		fttest.Shut(s.t, lib)
	}()
	return (<-addr).String(), end
}

// prepare posts more receives than a client that keeps to the protocol has writes under way.
func (s *script) prepare(c *rc.Conn) error {
	_, err := c.QP().PostRecv(make([]verbs.RecvWR, 10))
	return err
}

// completion notes the client's writes and answers them.
func (s *script) completion(c *rc.Conn, wc verbs.WC) error {
	if !wc.Op.IsRecv() {
		return nil
	}
	s.writes = append(s.writes, write{wc.Imm, string(s.buffer.Bytes()[:min(int(wc.Imm), 20)])})
	return s.next(c)
}

// next sends the next answer, with the region filled in unless the script has one.
func (s *script) next(c *rc.Conn) error {
	if len(s.answers) == 0 {
		return c.Disconnect()
	}
	b := s.answers[0]
	s.answers = s.answers[1:]
	if m, ok := ft.ParseMessage(b); ok && m.Buffer == (verbs.RemoteAddr{}) {
		b = ft.AppendMessage(nil, ft.Message{ID: m.ID, Buffer: s.buffer.Remote()})
	}
	n := copy(s.out.Bytes(), b)
	wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{s.out.SGE(0, n)}}
	_, err := c.QP().PostSend([]verbs.SendWR{wr})
	return err
}

// outcome is what the program did.
type outcome struct {
	code           int
	stdout, stderr string
}

// against runs the program with a file against a server that follows a script.
func against(t *testing.T, path string, answers ...[]byte) (outcome, []write) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fttest.Limit)
	defer cancel()
	s := &script{t: t, answers: answers}
	addr, end := s.start(ctx)
	var out, errs bytes.Buffer
	code := run(ctx, []string{"client", addr, path}, &out, &errs)
	<-end
	return outcome{code, out.String(), errs.String()}, s.writes
}

// input makes a file.
func input(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTransfer(t *testing.T) {
	got, writes := against(t, input(t, "test-file", "content"), message(ft.MsgMR), message(ft.MsgReady), message(ft.MsgReady), message(ft.MsgDone))
	want := outcome{0, "received MR, sending file name\nreceived READY, sending chunk\nreceived READY, sending chunk\nreceived DONE, disconnecting\n", ""}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// The length of the name counts its NUL, and the base name goes out of a longer path. The end has no bytes.
	wantWrites := []write{{10, "test-file\x00"}, {7, "content"}, {0, ""}}
	if diff := cmp.Diff(wantWrites, writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

// The receive comes before the connection, and before each write that provokes a message.
// parity: B02 B05
func TestReceivesArePostedFirst(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), fttest.Limit)
	defer cancel()
	s := &script{t: t, answers: [][]byte{message(ft.MsgMR), message(ft.MsgReady), message(ft.MsgReady), message(ft.MsgDone)}}
	addr, end := s.start(ctx)
	var j journal.Journal
	dev := j.Wrap(fttest.Must(iwarp.Open(iwarp.Config{}))(t))
	defer fttest.Shut(t, dev)
	file := fttest.Must(os.Open(input(t, "f", "abc")))(t)
	defer fttest.Shut(t, file)
	c := &client{out: &bytes.Buffer{}, file: file, name: "f"}
	if err := c.sendOver(ctx, dev, addr); err != nil {
		t.Error(err)
	}
	<-end
	const receive = "receive 1 entries, 24 bytes\n"
	want := receive + "dial\n" +
		receive + "rdma-write-with-imm 2 bytes, immediate 2\n" +
		receive + "rdma-write-with-imm 3 bytes, immediate 3\n" +
		receive + "rdma-write-with-imm 0 bytes, immediate 0"
	if diff := cmp.Diff(want, j.String()); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

// short is a device whose ports send short messages only.
type short struct {
	verbs.DeviceDriver
	longest uint64
}

func (d short) Query() (verbs.DeviceAttr, error) {
	attr, err := d.DeviceDriver.Query()
	attr.Ports = slices.Clone(attr.Ports)
	for n := range attr.Ports {
		attr.Ports[n].MaxMsgSize = d.longest
	}
	return attr, err
}

// A chunk that is too long for one message is still one chunk, which only its last part announces.
func TestShortMessages(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), fttest.Limit)
	defer cancel()
	data := strings.Repeat("0123456789", 100_000)
	s := &script{t: t, answers: [][]byte{message(ft.MsgMR), message(ft.MsgReady), message(ft.MsgReady), message(ft.MsgDone)}}
	addr, end := s.start(ctx)
	var j journal.Journal
	dev := verbs.NewDevice(short{j.Wrap(fttest.Must(iwarp.Open(iwarp.Config{}))(t)).Driver(), 300_000})
	defer fttest.Shut(t, dev)
	file := fttest.Must(os.Open(input(t, "f", data)))(t)
	defer fttest.Shut(t, file)
	c := &client{out: &bytes.Buffer{}, file: file, name: "f"}
	if err := c.sendOver(ctx, dev, addr); err != nil {
		t.Error(err)
	}
	<-end
	if diff := cmp.Diff([]write{{2, "f\x00"}, {uint32(len(data)), data[:20]}, {}}, s.writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	const posts = "rdma-write 300000 bytes\nrdma-write 300000 bytes\nrdma-write 300000 bytes\nrdma-write-with-imm 100000 bytes, immediate 1000000\n"
	if got := j.String(); !strings.Contains(got, posts) {
		t.Errorf("journal:\n%s", got)
	}
}

// A chunk is the whole buffer, at its beginning, as long as the file lasts.
// parity: B07 B10 B21
func TestChunks(t *testing.T) {
	chunk := strings.Repeat("c", ft.BufferSize)
	for _, size := range []int{0, 1, ft.BufferSize - 1, ft.BufferSize, ft.BufferSize + 1, 2 * ft.BufferSize} {
		want := []uint32{2}
		for n := size; n > 0; n -= ft.BufferSize {
			want = append(want, uint32(min(n, ft.BufferSize)))
		}
		want = append(want, 0)
		answers := [][]byte{message(ft.MsgMR)}
		for range len(want) - 1 {
			answers = append(answers, message(ft.MsgReady))
		}
		path := input(t, "f", strings.Repeat(chunk, size/len(chunk))+chunk[:size%len(chunk)])
		got, writes := against(t, path, append(answers, message(ft.MsgDone))...)
		var imms []uint32
		for _, w := range writes {
			imms = append(imms, w.Imm)
		}
		if diff := cmp.Diff(want, imms); diff != "" || got.code != 0 {
			t.Errorf("%d bytes: %+v; immediates (-want +got):\n%s", size, got, diff)
		}
	}
}

func TestBadServers(t *testing.T) {
	elsewhere := ft.AppendMessage(nil, ft.Message{ID: ft.MsgMR, Buffer: verbs.RemoteAddr{Addr: 1, RKey: 1}})
	for _, tt := range []struct {
		name    string
		answers [][]byte
		want    string // in the error message
	}{
		{"leaves at once", nil, "ended the connection before it had the whole file"},
		{"leaves after MR", [][]byte{message(1)}, "ended the connection before it had the whole file"},
		{"leaves after READY", [][]byte{message(1), message(2)}, "ended the connection before it had the whole file"},
		{"short message", [][]byte{message(1)[:23]}, "23 bytes that are no message"},
		{"empty message", [][]byte{{}}, "0 bytes that are no message"},
		{"message 0", [][]byte{message(0)}, "no message"},
		{"message 4", [][]byte{message(4)}, "no message"},
		{"READY first", [][]byte{message(2)}, "message 2 out of turn"},
		{"DONE first", [][]byte{message(3)}, "message 3 out of turn"},
		{"MR twice", [][]byte{message(1), message(1)}, "message 1 out of turn"},
		{"DONE before the end", [][]byte{message(1), message(2), message(3)}, "message 3 out of turn"},
		{"READY after the end", [][]byte{message(1), message(2), message(2), message(2)}, "message 2 out of turn"},
		{"region elsewhere", [][]byte{elsewhere}, "connection to 127.0.0.1:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := against(t, input(t, "f", "abc"), tt.answers...)
			if got.code != 1 || !strings.HasPrefix(got.stderr, "error: ") || !strings.Contains(got.stderr, tt.want) || strings.Contains(got.stdout, "DONE") {
				t.Errorf("got %+v, want an error with %q", got, tt.want)
			}
		})
	}
}

// A file that cannot be read to its end is not taken for a short one.
// parity: B45
func TestReadError(t *testing.T) {
	const unreadable = "/proc/self/mem" // opens, and has nothing at its beginning
	if _, err := os.Stat(unreadable); err != nil {
		t.Skipf("this system has no %s: %v", unreadable, err)
	}
	got, writes := against(t, unreadable, message(ft.MsgMR), message(ft.MsgReady), message(ft.MsgReady))
	if got.code != 1 || !strings.Contains(got.stderr, "read the input file") || len(writes) != 1 {
		t.Errorf("got %+v, writes %v", got, writes)
	}
}

func runClient(t *testing.T, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), append([]string{"./client"}, args...), &out, &errs)
	return outcome{code, out.String(), errs.String()}
}

// parity: B16
func TestUsage(t *testing.T) {
	want := outcome{1, "", "usage: ./client <server-address> <file-name>\n"}
	for _, args := range [][]string{{}, {"host"}, {"host", "file", "more"}, {"-device"}, {"-device", "d", "host"}, {"-nonsense", "host", "file"}} {
		if got := runClient(t, args...); got != want {
			t.Errorf("%q: got %+v", args, got)
		}
	}
}

// Nobody is connected to: the address could not even be resolved.
// parity: B17
func TestUnreadableInput(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "nothing"), dir} {
		want := outcome{1, "", "unable to open input file \"" + filepath.Base(path) + "\"\n"}
		if got := runClient(t, "no-such-host.invalid", path); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// What is asked for by name and is not there is not replaced by the software device.
func TestNoDevice(t *testing.T) {
	got := runClient(t, "-device", "none0", "127.0.0.1:1", input(t, "f", ""))
	if got.code != 1 || !strings.Contains(got.stderr, "RDMA") {
		t.Errorf("got %+v", got)
	}
}

func TestNoServer(t *testing.T) {
	dev := fttest.Must(iwarp.Open(iwarp.Config{}))(t)
	defer fttest.Shut(t, dev)
	l := fttest.Must(verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	addr := l.Addr().String()
	fttest.Shut(t, l)
	got := runClient(t, addr, input(t, "f", ""))
	if got.code != 1 || !strings.Contains(got.stderr, "connect to "+addr) || !strings.Contains(got.stderr, "refused") {
		t.Errorf("got %+v", got)
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"client", "127.0.0.1:1", input(t, "f", "")}, &out, &errs); code != 1 || errs.String() != "error: context canceled\n" {
		t.Errorf("exit code %d, %q", code, &errs)
	}
}
