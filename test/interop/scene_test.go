//go:build linux

package interop

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/internal/recording"
)

// scheme begins the addresses of servers.
const scheme = "ofi+tcp://"

// recordFlag makes TestServersOfC record what it sees.
var recordFlag = flag.Bool("record", false, "write testdata/servers anew, from the servers in C that are there")

// programsVariable names directories with programs that come with the C libraries, separated by colons.
const programsVariable = "CINNABAR_C_PROGRAMS"

// scene is what a client in Go does at a server in C or C++. Its recording is the file of its name in testdata/servers.
type scene struct {
	name      string
	peer      *program // a program of this directory, or
	installed string   // the name of one that comes with the C libraries
	options   []string // of the program
	cfg       *cinnabar.Config
	listens   bool // the client listens, because the server calls it
	checksums bool // the recorded Mercury computes them
	run       func(t *testing.T, e *cinnabar.Engine, to *cinnabar.Endpoint)
	shell     *commandLine                                 // the client is the command cinnabar call, in the place of run
	serve     func(t *testing.T) (p *process, addr string) // starts peer, if that does not print its address as others do
}

// file returns the path of the scene's recording.
func (s *scene) file() string { return filepath.Join("testdata", "servers", s.name+".txt") }

// act has a client do the scene at the server at addr.
func (s *scene) act(t *testing.T, addr string) {
	t.Helper()
	if s.shell != nil {
		s.shell.run(t, addr)
		return
	}
	open := cinnabar.Open
	if s.listens {
		open = cinnabar.Listen
	}
	e, err := open(t.Context(), tcp, s.cfg)
	must(t, err)
	defer closeEngine(t, e)
	to, err := e.Lookup(addr)
	must(t, err)
	s.run(t, e, to)
}

// probes reports whether the client finds out by its first request how the server was built.
func (s *scene) probes() bool { return s.cfg == nil || s.cfg.Checksums == cinnabar.ChecksumsAuto }

// TestRecordedServers has clients in Go call recorded servers in C and C++, which find every byte that they are sent as it was
// recorded, but for the fields that differ from run to run.
// parity(recorded): H30 H43 H46 H48 H51 H55 H60 H62 H70 H71 H77 H79 H80 H84 H124 G07 G20 G21 G27 G30 G38 G39 G45 G95 T05 T20 T21 T22
// parity(recorded): T24 T41 T42 T47 T48 T50 T52 Q05 P01
func TestRecordedServers(t *testing.T) {
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := readScene(t, &s)
			if heard := replayServer(t, &s, c); !t.Failed() {
				mutate(t, c, heard)
			}
		})
	}
}

// mutate changes bytes of what a client has sent, one at a time, which the recorded server must notice: all of short messages
// and some of long ones, but for those that give fields their values.
func mutate(t *testing.T, c *recording.Conversation, sent [][]byte) {
	t.Helper()
	k := recording.NewChecker(c, true)
	changed, free := 0, 0
	for i, b := range sent {
		may := k.Free()
		step := 1
		switch {
		case len(b) > 1<<16:
			step = len(b) / 4
		case len(b) > 512:
			step = len(b) / 64
		}
		for at := i % step; at < len(b); at += step {
			if may[at] {
				free++
				continue
			}
			b[at] ^= 1 << (at % 8)
			if k.Try(b) == nil {
				t.Errorf("message %d of the client, of %d bytes, may have another byte %d", i, len(b), at)
			}
			b[at] ^= 1 << (at % 8)
			changed++
		}
		must(t, k.Next(b))
	}
	if k.Left() != 0 || changed < 2*free {
		t.Errorf("%d bytes were changed and %d free; %d messages are left", changed, free, k.Left())
	}
}

// TestRecordingsOfServers wants each recording used, and all of them small.
func TestRecordingsOfServers(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "servers", "*.txt"))
	must(t, err)
	used := map[string]bool{}
	for _, s := range scenes {
		if used[s.file()] {
			t.Errorf("two scenes have the name %s", s.name)
		}
		used[s.file()] = true
	}
	total := int64(0)
	for _, f := range files {
		info, err := os.Stat(f)
		must(t, err)
		total += info.Size()
		if !used[f] {
			t.Errorf("no scene uses %s", f)
		}
	}
	if total > 3<<20 {
		t.Errorf("the recordings have %d bytes, want at most 3 MiB", total)
	}
}

func readScene(t *testing.T, s *scene) *recording.Conversation {
	t.Helper()
	r, err := recording.ReadFile(s.file())
	must(t, err)
	if len(r.Conversations) != 1 {
		t.Fatalf("%s has %d conversations, want 1", s.file(), len(r.Conversations))
	}
	return &r.Conversations[0]
}

// replayServer plays the server of a conversation to a scene, and returns what the client has sent.
func replayServer(t *testing.T, s *scene, c *recording.Conversation) [][]byte {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }() // nothing is lost
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := recording.NewListener(c)
	played := make(chan error, 1)
	go func() { played <- p.Serve(ctx, l) }()
	s.act(t, scheme+l.Addr().String())
	if err := <-played; err != nil {
		t.Errorf("the recorded server: %v", err)
	}
	return p.Received()
}

// TestServersOfC has clients in Go call the servers in C and C++ themselves. With -record it writes the recordings anew.
// parity(peer): H46 H77 H80 G95 T20 P01
func TestServersOfC(t *testing.T) {
	hgPeer.executable(t)
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			p, addr := s.start(t)
			s.relay(t, p, addr)
		})
	}
}

// start starts the scene's server and returns its address.
func (s *scene) start(t *testing.T) (p *process, addr string) {
	t.Helper()
	if s.serve != nil {
		return s.serve(t)
	}
	if s.peer != nil {
		q := startPeer(t, s.peer, s.options...)
		if q.checksums != s.checksums {
			t.Skipf("the installed Mercury computes checksums: %v; the scene is about the other kind", q.checksums)
		}
		return q.process, q.addr
	}
	p = startFile(t, installedProgram(t, s.installed), s.options...)
	return p, p.listensAt()
}

// installedProgram returns the path of a program that comes with the C libraries.
func installedProgram(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range filepath.SplitList(os.Getenv(programsVariable)) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	t.Skipf("%s is in no directory of %s", name, programsVariable)
	return ""
}

// relay acts the scene over a relay. With -record it writes the scene's recording. A server that comes with the C libraries does
// not say how its Mercury was built, but its responses do.
func (s *scene) relay(t *testing.T, p *process, addr string) {
	t.Helper()
	to := strings.TrimPrefix(addr, scheme)
	r, err := recording.NewRelay("127.0.0.1:0", to)
	must(t, err)
	s.act(t, scheme+r.Addr())
	p.Kill()
	conns, err := r.Close()
	must(t, err)
	if t.Failed() {
		return
	}
	if len(conns) != 1 {
		t.Fatalf("%d connections, want 1", len(conns))
	}
	if got := answersWithChecksums(conns[0]); (s.installed != "" || s.serve != nil) && s.answers() && got != s.checksums {
		t.Skipf("the installed Mercury computes checksums: %v; the scene is about the other kind", got)
	}
	if !*recordFlag {
		return
	}
	c, err := recording.Compress(conns[0], netip.MustParseAddrPort(to), s.probes())
	must(t, err)
	rec := recording.Recording{Comments: s.provenance(), Conversations: []recording.Conversation{c}}
	must(t, os.WriteFile(s.file(), rec.Append(nil), 0o644))
	replayServer(t, s, readScene(t, s))
}

// answers reports whether the server sends a response.
func (s *scene) answers() bool { return s.shell == nil || !s.shell.oneWay }

// answersWithChecksums reports whether one of the listening side's responses has checksums.
func answersWithChecksums(ms []recording.Raw) bool {
	for _, m := range ms {
		if b := m.Bytes; !m.FromDialer && len(b) > cmSize && b[1] == opTag && len(b) >= int(b[6])+coreHeader && b[int(b[6])+1]&flagChecksums != 0 {
			return true
		}
	}
	return false
}

// provenance says where a recording comes from.
func (s *scene) provenance() []string {
	kind, server := "without", s.installed
	if s.checksums {
		kind = "with"
	}
	if s.peer != nil {
		server = s.peer.name
	}
	return []string{
		fmt.Sprintf("provenance: relayed on loopback between a client of cinnabar and %s", strings.Join(append([]string{server}, s.options...), " ")),
		fmt.Sprintf("Mercury 2.4.1 %s checksums, libfabric 2.7.0a1 tcp, Margo 0.24.0, Thallium 0.16.0, x86-64 Linux", kind),
		"format: package internal/recording",
	}
}
