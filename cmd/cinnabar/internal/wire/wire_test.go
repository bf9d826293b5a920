package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/capture"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/recording"
)

func TestMain(m *testing.M) {
	clitest.Main(m, func(s cli.Streams) *cobra.Command { return cli.NewRoot(s, New(s)) })
}

const captures = "testdata/captures"

// The lines of each capture are those of its text file.
// parity: P05
func TestCaptures(t *testing.T) {
	files, err := filepath.Glob(captures + "/*.pcap")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			o := clitest.WantRun(t, cli.ExitOK, []string{"wire", file, "--name", "sum"})
			if o.Err.Len() > 0 {
				t.Errorf("standard error has %q", &o.Err)
			}
			text := strings.TrimSuffix(file, "pcap") + "txt"
			if os.Getenv("UPDATE_CAPTURES") != "" {
				if err := os.WriteFile(text, o.Out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			clitest.Golden(t, strings.TrimPrefix(text, "testdata/"), o.Out.String())
		})
	}
}

// piece is a part of a TCP stream.
type piece struct {
	fromDialer bool
	b          []byte
}

var (
	dialer   = netip.MustParseAddrPort("127.0.0.1:40000")
	listener = netip.MustParseAddrPort("127.0.0.1:50000")
)

// file returns a capture of a connection, whose segments are in the order of pieces if mix is nil.
func file(pieces []piece, mix *rand.Rand) []byte {
	seq := [2]uint32{100, 200}
	packets := [][]byte{packet(0, seq[0], 2, nil), packet(1, seq[1], 2, nil)}
	for _, p := range pieces {
		dir := 1
		if p.fromDialer {
			dir = 0
		}
		for part := range slices.Chunk(p.b, 1400) {
			packets = append(packets, packet(dir, seq[dir]+1, 16, part))
			seq[dir] += uint32(len(part))
		}
	}
	if mix != nil {
		mix.Shuffle(len(packets)-2, func(i, j int) { packets[i+2], packets[j+2] = packets[j+2], packets[i+2] })
	}
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0)
	for i, p := range packets {
		b = binary.LittleEndian.AppendUint32(b, 1_000_000)
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(p))), p...)
	}
	return b
}

// packet returns an IPv4 packet of a side.
func packet(dir int, seq uint32, flags byte, data []byte) []byte {
	ends := [2]netip.AddrPort{dialer, listener}
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(40+len(data)))
	b = append(append(b, ends[dir].Addr().AsSlice()...), ends[1-dir].Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, ends[dir].Port())
	b = binary.BigEndian.AppendUint16(b, ends[1-dir].Port())
	b = binary.BigEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0, 0x50, flags, 255, 255, 0, 0, 0, 0)
	return append(b, data...)
}

// expand returns the bytes of the messages of a recorded conversation. Each field gets a value of its own.
func expand(c *recording.Conversation) []piece {
	fields := map[string][]byte{}
	var list []piece
	for _, m := range c.Messages {
		if m.End {
			continue
		}
		var b []byte
		sum := -1
		for _, it := range m.Items {
			switch it.Kind {
			case recording.Literal:
				b = append(b, it.Bytes...)
			case recording.Formula:
				b = append(b, recording.Pattern(it.Seed, it.Offset, it.Size)...)
			case recording.Repeat:
				b = append(b, bytes.Repeat(it.Bytes, it.Size/len(it.Bytes)+1)[:it.Size]...)
			case recording.Field:
				if fields[it.Name] == nil {
					v := make([]byte, it.Size)
					v[0], v[it.Size-1] = byte(len(fields)+1), byte(len(fields)+1)
					if strings.HasPrefix(it.Name, "tag") {
						v[it.Size-1] = 0
					}
					fields[it.Name] = v
				}
				b = append(b, fields[it.Name]...)
			case recording.Sum:
				sum = len(b)
				b = append(b, 0, 0, 0, 0)
			case recording.Verify:
			}
		}
		if sum >= 0 {
			binary.BigEndian.PutUint32(b[sum:], wire.CRC32C(b[sum+4:]))
		}
		list = append(list, piece{m.FromDialer, b})
	}
	return list
}

// recordings calls test with each recorded conversation of C programs.
func recordings(t *testing.T, test func(t *testing.T, pieces []piece)) {
	t.Helper()
	for _, dir := range []string{"servers", "wire"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "test", "interop", "testdata", dir, "*"))
		if err != nil || len(files) < 10 {
			t.Fatalf("%d recordings, %v", len(files), err)
		}
		for _, path := range files {
			r, err := recording.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range r.Conversations {
				size := 0
				for _, m := range r.Conversations[i].Messages {
					size += m.Size()
				}
				if size > 3<<20 {
					continue // more of the same messages, which would take a second with the race detector
				}
				if expand(&r.Conversations[i])[0].b[0] != 3 {
					continue // another version of the protocol, which the peer refuses
				}
				t.Run(fmt.Sprintf("%s/%d", filepath.Base(path), i), func(t *testing.T) { test(t, expand(&r.Conversations[i])) })
			}
		}
	}
}

// decoded runs the command with a capture on standard input, and returns the lines that it prints.
func decoded(t *testing.T, in []byte, args ...string) []line {
	t.Helper()
	var o clitest.Output
	s := o.Streams()
	s.In = bytes.NewReader(in)
	if code := clitest.Run(t.Context(), append([]string{"wire", "-", "--json"}, args...), s); code != cli.ExitOK || o.Err.Len() > 0 {
		t.Fatalf("exit code %d: %s", code, &o.Err)
	}
	var list []line
	for d := json.NewDecoder(&o.Out); ; {
		var l line
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, l)
	}
}

// Each message that C programs have sent over ofi+tcp is one line, with its size; responses, reads and acknowledgements have the calls of their requests.
func TestRecordings(t *testing.T) {
	recordings(t, func(t *testing.T, pieces []piece) {
		lines := decoded(t, file(pieces, nil))
		if len(lines) != len(pieces) {
			t.Fatalf("%d lines of %d messages", len(lines), len(pieces))
		}
		calls := map[int]bool{}
		for i, l := range lines {
			if l.Size != uint64(len(pieces[i].b)) || l.Protocol != "ofi+tcp" || (l.Source == dialer.String()) != pieces[i].fromDialer {
				t.Errorf("line %+v of a message of %d bytes", l, len(pieces[i].b))
			}
			switch l.Operation {
			case "request", "one-way", "probe":
				calls[l.Call] = true
			case "response", "fetched":
				if !calls[l.Call] || l.Call == 0 {
					t.Errorf("no call of %+v", l)
				}
			case "read-data", "write-ack":
				if earlier := lines[i-1]; l.Call != earlier.Call && len(pieces) < 20 && earlier.Operation == strings.TrimSuffix(strings.TrimSuffix(l.Operation, "-data"), "-ack") {
					t.Errorf("call %d of %+v, want %d", l.Call, l, earlier.Call)
				}
			case "connect", "accept", "read", "write", "refuse":
			default:
				t.Errorf("operation %s: %v", l.Operation, l.Fields)
			}
		}
	})
}

// Messages are the same when the segments of the connection come in another order.
func TestMixedSegments(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	recordings(t, func(t *testing.T, pieces []piece) {
		if len(pieces) > 60 || total(pieces) > 200<<10 {
			t.Skip("a long conversation adds nothing to the short ones, and more of it may wait than the limits permit")
		}
		want := map[string]int{}
		text := func(l line) string {
			l.Fields["id"], l.Fields["rpc"] = nil, nil // a response may come before its request here
			return fmt.Sprint(l.Source, l.Operation, l.Size, l.Fields["tag"], l.Fields["key"], l.Fields["payload"])
		}
		for _, l := range decoded(t, file(pieces, nil)) {
			want[text(l)]++
		}
		for _, l := range decoded(t, file(pieces, rng)) {
			want[text(l)]--
		}
		for s, n := range want {
			if n != 0 {
				t.Errorf("%s: %d more in order", s, n)
			}
		}
	})
}

// --follow prints the lines of one call, also with the memory that it uses.
func TestFollow(t *testing.T) {
	pull := captures + "/verbs-rxm-rxe-pull.pcap"
	for args, want := range map[string]string{
		pull + " --follow 1":                               "8 request,10 response,14 read,18 read-data",
		pull + " --follow 2":                               "12 request,19 response",
		pull + " -f 0x6":                                   "12 request,19 response",
		captures + "/verbs-rxm-siw-sum.pcap -f 2":          "15 request,16 response",
		captures + "/verbs-rxm-siw-sum.pcap -f sum -n sum": "12 request,14 response,15 request,16 response,17 request,18 response,19 request,20 response",
	} {
		o := clitest.WantRun(t, cli.ExitOK, append([]string{"wire", "--json"}, strings.Fields(args)...))
		var got []string
		for text := range strings.Lines(o.Out.String()) {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%d %s", l.Packet, l.Operation))
		}
		if s := strings.Join(got, ","); s != want {
			t.Errorf("%s: %s, want %s", args, s, want)
		}
	}
	clitest.WantRun(t, cli.ExitFailure, []string{"wire", pull, "--follow", "nosuch"}, "has no call of --follow nosuch")
}

// A capture that breaks off is decoded up to its end, and the note has the place. Bytes that are no capture are refused with theirs.
func TestTruncated(t *testing.T) {
	whole, err := os.ReadFile(captures + "/verbs-rxm-siw-sum.pcap")
	if err != nil {
		t.Fatal(err)
	}
	all := clitest.WantRun(t, cli.ExitOK, []string{"wire", captures + "/verbs-rxm-siw-sum.pcap"}).Out.String()
	ends := map[int]bool{24: true} // of packets
	for o := 24; o < len(whole); ends[o] = true {
		o += 16 + int(binary.LittleEndian.Uint32(whole[o+8:]))
	}
	for n := 24; n < len(whole); n += 101 {
		path := clitest.WriteTemp(t, "part.pcap", whole[:n])
		o := clitest.WantRun(t, cli.ExitOK, []string{"wire", path})
		for text := range strings.Lines(o.Out.String()) {
			if !strings.Contains(all, text) && !strings.Contains(text, "unfinished") {
				t.Fatalf("%d bytes: %s", n, text)
			}
		}
		if s := o.Err.String(); strings.Contains(s, "the file ends inside a") == ends[n] || strings.Count(s, "\n") > 1 {
			t.Errorf("%d bytes: standard error %q", n, s)
		}
	}
	bad := bytes.Clone(whole)
	binary.LittleEndian.PutUint32(bad[24+8:], 1<<30)
	clitest.WantRun(t, cli.ExitFailure, []string{"wire", clitest.WriteTemp(t, "bad.pcap", bad)}, "a packet of 1073741824 bytes, of which 262144 are the most at byte 24 of the capture")
}

// A segment that the capture does not have is a line, and later messages are decoded.
func TestMissingSegments(t *testing.T) {
	hello, _ := recordedPull(t)
	list := slices.Clone(hello)
	data := file(list, nil)
	// Without its last segment but one, the capture has a gap.
	at := []int{}
	for o := 24; o < len(data); o += 16 + int(binary.LittleEndian.Uint32(data[o+8:])) {
		at = append(at, o)
	}
	cut := slices.Concat(data[:at[len(at)-2]], data[at[len(at)-1]:])
	lines := decoded(t, cut)
	if len(lines) < len(list)-2 {
		t.Errorf("%d lines of %d messages", len(lines), len(list))
	}
	// Without the beginning of the connection, messages are found.
	late := slices.Concat(data[:24], data[at[4]:])
	if got := decoded(t, late); len(got) != len(list)-2 {
		t.Errorf("%d lines of %d messages behind the first two", len(got), len(list)-2)
	}
}

// recordedPull returns the messages of a recorded pull.
func recordedPull(t *testing.T) ([]piece, string) {
	t.Helper()
	path := filepath.Join("..", "..", "..", "..", "test", "interop", "testdata", "wire", "bound_pull.hex")
	r, err := recording.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return expand(&r.Conversations[0]), path
}

// ^C ends the command while it waits for bytes. The lines of packets that have come are printed before it waits.
// parity: Y14
func TestInterrupt(t *testing.T) {
	pieces, _ := recordedPull(t)
	in, feed := io.Pipe()
	defer cli.Shut(feed)
	ctx, cancel := context.WithCancelCause(t.Context())
	seen := make(chan struct{})
	var o clitest.Output
	s := o.Streams()
	s.In = in
	s.Out = clitest.WriterFunc(func(b []byte) (int, error) {
		if o.Out.Len() == 0 {
			close(seen)
		}
		return o.Out.Write(b)
	})
	code := make(chan int)
	go func() { code <- clitest.Run(ctx, []string{"wire", "-"}, s) }()
	if _, err := feed.Write(file(pieces, nil)); err != nil {
		t.Fatal(err)
	}
	<-seen
	cancel(cli.SignalError{Signal: syscall.SIGINT})
	if got := <-code; got != cli.ExitSignal+int(syscall.SIGINT) || strings.Count(o.Out.String(), "\n") != len(pieces) {
		t.Errorf("exit code %d, %s%s", got, &o.Out, &o.Err)
	}
}

// Peers' texts cannot act upon a terminal.
func TestEscapes(t *testing.T) {
	m := &message{operation: "OPEN"}
	m.add("name", "a\x1b[2J \u202e=\n")
	if s := m.text(); s != `OPEN name="a\x1b[2J \u202e=\n"` {
		t.Errorf("%q", s)
	}
	var b bytes.Buffer
	if err := (&printer{w: &b, asJSON: true}).print(m); err != nil || strings.ContainsAny(b.String(), "\x1b\u202e") {
		t.Errorf("%q %v", &b, err)
	}
}

// Unfinished messages of all connections together keep at most maxBudget bytes, also those whose bytes the capture does not have.
func TestBudget(t *testing.T) {
	dropped := 0
	d := newDecoder(func(m *message) {
		if m.operation == "dropped" {
			dropped++
		}
	})
	var conns []*tcpConn
	start := []byte("MPA ID Req Frame\x00\x01\x00\x00\xff\xff")
	for range maxBudget/(1<<16) + 10 {
		c := &tcpConn{d: d, ends: [2]netip.AddrPort{dialer, listener}, start: true}
		c.Bytes(0, start)
		c.Gap(0, 1<<16-10)
		conns = append(conns, c)
		if d.kept > maxBudget {
			t.Fatalf("%d bytes are kept, of which %d are the most", d.kept, maxBudget)
		}
	}
	if dropped == 0 || d.kept < maxBudget/2 {
		t.Errorf("%d bytes are kept, and %d directions given up", d.kept, dropped)
	}
	// A message of which some bytes were not kept keeps no later ones, also when there is room again.
	full := d.kept
	d.kept = maxBudget
	b := body{d: d}
	b.add([]byte("one"))
	d.kept = full
	if b.add([]byte("two")); len(b.data) > 0 {
		t.Errorf("kept %q behind bytes that were not kept", b.data)
	}
	for _, c := range conns {
		c.End(0, capture.Stopped)
		c.End(1, capture.Stopped)
	}
	if d.kept != 0 {
		t.Errorf("%d bytes are kept at the end", d.kept)
	}
}

// A full device is an error.
func TestFullDevice(t *testing.T) {
	var o clitest.Output
	s := o.Streams()
	s.Out = clitest.WriterFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	if code := clitest.Run(t.Context(), []string{"wire", captures + "/siw-rping.pcap"}, s); code != cli.ExitFailure || !strings.Contains(o.Err.String(), "no space left") {
		t.Errorf("exit code %d: %s", code, &o.Err)
	}
}

// No bytes make the decoder panic, keep memory behind its end, or print more than lines for the packets that it got.
func FuzzWire(f *testing.F) {
	for _, name := range []string{"verbs-rxm-siw-pull", "verbs-rxm-rxe-collide-2", "rxe-03-file-transfer"} {
		b, err := os.ReadFile(filepath.Join(captures, name+".pcap"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var failed [2]bool
		for i, args := range [][]string{{"wire", "-"}, {"wire", "-", "--json"}} {
			var o clitest.Output
			s := o.Streams()
			s.In = bytes.NewReader(b)
			code := clitest.Run(t.Context(), args, s)
			if code != cli.ExitOK && code != cli.ExitFailure {
				t.Fatalf("exit code %d", code)
			}
			failed[i] = code == cli.ExitFailure
		}
		if failed[0] != failed[1] {
			t.Fatal("lines and JSON do not end alike")
		}
	})
}

// FuzzStream decodes both directions of a TCP connection, cut in many ways: even bytes of cuts choose the direction, and 0 is a gap.
func FuzzStream(f *testing.F) {
	pieces, err := recording.ReadFile(filepath.Join("..", "..", "..", "..", "test", "interop", "testdata", "wire", "bound_pull.hex"))
	if err != nil {
		f.Fatal(err)
	}
	var all, cuts []byte
	for _, p := range expand(&pieces.Conversations[0]) {
		all = append(all, p.b...)
		cuts = append(cuts, byte(min(len(p.b), 127)<<1))
	}
	f.Add(all, cuts, true)
	f.Add([]byte("MPA ID Req Frame\x00\x02\x00\x00MPA ID Rep Frame\x00\x02\x00\x00\x00\x12\x41\x43"), []byte{40, 41, 0, 12}, true)
	f.Fuzz(func(t *testing.T, b, cuts []byte, start bool) {
		d := newDecoder(func(m *message) { _ = m.text() })
		c := &tcpConn{d: d, ends: [2]netip.AddrPort{dialer, listener}, start: start}
		for _, n := range cuts {
			dir := int(n & 1)
			part := b[:min(int(n>>1), len(b))]
			b = b[len(part):]
			if n>>1 == 0 {
				c.Gap(dir, uint64(n)+3)
			} else if len(part) > 0 {
				c.Bytes(dir, bytes.Clone(part))
			}
		}
		c.End(0, 0)
		c.End(1, 0)
		if d.kept != 0 {
			t.Fatalf("%d bytes are kept", d.kept)
		}
	})
}

// A message of 24 bytes is one of the paper's programs only if the connection has no private data, because those programs send none.
func TestMessageOfAnotherProgram(t *testing.T) {
	message := append([]byte{2, 0, 0, 0}, make([]byte, 20)...) // READY in the paper's form
	ulpdu := append(ddp.AppendHeader(nil, ddp.Header{Last: true, Version: ddp.Version, ULP: rdmap.Control(rdmap.OpSend), MSN: 1}), message...)
	fpdu := append(mpa.AppendHeader(nil, len(ulpdu)), ulpdu...)
	fpdu = mpa.AppendTrailer(fpdu, len(ulpdu), 0, false)
	for private, want := range map[string]string{"": "READY", "another program": "send"} {
		request, err := mpa.AppendFrame(nil, mpa.Frame{Revision: 1, PrivateData: []byte(private)})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := mpa.AppendFrame(nil, mpa.Frame{Revision: 1, Reply: true})
		if err != nil {
			t.Fatal(err)
		}
		lines := decoded(t, file([]piece{{true, request}, {false, reply}, {true, fpdu}}, nil))
		if got := lines[len(lines)-1].Operation; len(lines) != 3 || got != want {
			t.Errorf("private data %q: %d lines, the last is %q, want %q", private, len(lines), got, want)
		}
	}
}
