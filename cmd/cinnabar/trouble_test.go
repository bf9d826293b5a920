//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/testproc"
)

// trouble is a way in which a command may fail: its arguments, and its end.
type trouble struct {
	args  string // words in capitals are those of a scene
	code  int    // exit code
	words string // parts of the output, separated by |: the thing, its limit or address, the remedy
	ready string // pattern of the line behind which the trouble begins, on standard error if it begins with "2>"; unused if a relay reports it
	none  string // the reason for which a command has no such trouble; the other fields are empty then
}

// troubles is the row of a command.
type troubles struct {
	Bare      trouble // no arguments
	Wrong     trouble // wrong arguments
	Down      trouble // no server listens at the address
	Address   trouble // an address, or the name of a device, that cannot be
	Port      trouble // the port is in use
	Interrupt trouble // ^C in the middle
	Killed    trouble // the server is killed in the middle
	Pipe      trouble // the reader of standard output is gone; the code has no meaning, because a signal ends the command
	Terminal  trouble // neither standard input nor the outputs are a terminal
}

// not returns the trouble that a command does not have.
func not(reason string) trouble { return trouble{none: reason} }

// Reasons for which commands have no trouble of a kind.
var (
	alone    = not("it talks to no server")
	isServer = not("it is the server")
	portless = not("it listens at no port that a user chooses")
	brief    = not("it waits for nothing")
	silent   = not("it prints no result")
	plain    = not("it prints the same on a terminal; each trouble checks that no output has escape sequences")
)

const stop = "stopped by signal: interrupt"

// anyLoss begins the error of a command that has lost its peer. The words behind it depend on the operation that was under way.
const anyLoss = "cinnabar "

// bare returns the trouble of a command that needs arguments.
func bare(usage string) trouble {
	return trouble{code: cli.ExitUsage, words: "usage: cinnabar " + usage + "|arg"}
}

// held returns the interrupt of a call that is not answered, and the loss of its server.
func held(args string) (interrupt, killed trouble) {
	return trouble{args: args, code: interrupted, words: stop}, trouble{args: args, code: cli.ExitFailure, words: "HG_HOSTUNREACH|127.0.0.1"}
}

// asking returns the row of a command that asks the server at its first argument.
func asking(usage, rest string, pipe trouble) troubles {
	row := troubles{
		Bare: bare(usage), Wrong: trouble{args: "DOWN" + rest + " -t 0s", code: cli.ExitUsage, words: "--timeout is 0s|such as 10s"},
		Down:    trouble{args: "DOWN" + rest, code: cli.ExitFailure, words: "127.0.0.1:1|connection refused|see whether"},
		Address: trouble{args: "127.0.0.1:7000" + rest, code: cli.ExitUsage, words: "127.0.0.1:7000|write ofi+tcp://127.0.0.1:7000"},
		Port:    portless, Pipe: pipe, Terminal: plain,
	}
	row.Interrupt, row.Killed = held("HELD" + rest)
	return row
}

func perfTroubles(op string) troubles {
	row := asking("perf "+op, " --size 64", trouble{args: "PERF --size 64 --count 1"})
	row.Bare.words = "no server|give its address or --port-file"
	row.Wrong = trouble{args: "DOWN --size x", code: cli.ExitUsage, words: "--size|\"x\"|KiB"}
	row.Interrupt = trouble{args: "PERF --size 64 --duration 1h --interval 10ms", ready: "^ +bytes", code: interrupted, words: stop}
	row.Killed = trouble{args: "SERVING --size 64 --duration 1h --interval 10ms", ready: "^ +bytes", code: cli.ExitFailure, words: "HG_HOSTUNREACH|127.0.0.1"}
	return row
}

// with returns the row with the changes that f makes.
func (r troubles) with(f func(*troubles)) troubles {
	f(&r)
	return r
}

// troubleRows has the row of each command.
var troubleRows = map[string]troubles{
	"demo": {
		Bare: not("it does its work then, which TestTwoProcesses of its package checks"), Wrong: trouble{args: "a b", code: cli.ExitUsage, words: "usage: cinnabar demo"},
		Down: alone, Address: trouble{args: "--device nope", code: cli.ExitFailure, words: "device 'nope' wasn't found|" + cli.SoftwareDevice}, Port: portless,
		Interrupt: trouble{args: "ENDLESS", ready: "between processes", code: interrupted, words: stop},
		Killed:    trouble{args: "ENDLESS", ready: "between processes", code: cli.ExitFailure, words: "the peer process failed: signal: killed"},
		Pipe:      trouble{args: "SMALL"}, Terminal: plain,
	},
	"send": {
		Bare: bare("send FILE... HOST[:PORT]"), Wrong: trouble{args: "main.go 127.0.0.1 --digest md5", code: cli.ExitUsage, words: "--digest|md5|sha256"},
		Down:    trouble{args: "main.go 127.0.0.1:1", code: cli.ExitFailure, words: "127.0.0.1:1|connection refused|see whether cinnabar recv runs there"},
		Address: trouble{args: "main.go 127.0.0.1:port:", code: cli.ExitUsage, words: "127.0.0.1:port:|[IPV6]:PORT|the last argument is the receiver"}, Port: portless,
		Interrupt: trouble{args: "ENDLESS RECEIVER", ready: "2>^sending endless ", code: interrupted, words: stop},
		Killed:    trouble{args: "ENDLESS RECEIVER", ready: "2>^sending endless ", code: cli.ExitFailure, words: `send "endless" (peer 127.0.0.1:`},
		Pipe:      trouble{args: "SMALL RECEIVER"}, Terminal: plain,
	},
	"recv": {
		Bare: not("it does its work then"), Wrong: trouble{args: "--digest md5", code: cli.ExitUsage, words: "--digest|md5|sha256"},
		Down: isServer, Address: trouble{args: "--listen 192.0.2.77:0", code: cli.ExitFailure, words: "192.0.2.77|address"},
		Port:      trouble{args: "--listen 127.0.0.1:PORT --dir DIR", code: cli.ExitFailure, words: "127.0.0.1|address already in use"},
		Interrupt: trouble{args: "--listen 127.0.0.1:0 --dir DIR --once", ready: "^waiting for one file at", code: interrupted, words: stop}, Killed: isServer,
		Pipe: trouble{args: "--listen 127.0.0.1:0 --dir DIR"}, Terminal: plain,
	},
	"serve-files": {
		Bare: bare("serve-files DIR"), Wrong: trouble{args: ". --overwrite", code: cli.ExitUsage, words: "--overwrite|--write"},
		Down: isServer, Address: trouble{args: "DIR --listen 192.0.2.77:0", code: cli.ExitFailure, words: "192.0.2.77|address"},
		Port:      trouble{args: "DIR --listen 127.0.0.1:PORT", code: cli.ExitFailure, words: "127.0.0.1|address already in use"},
		Interrupt: trouble{args: "DIR --listen 127.0.0.1:0", ready: "^serving directory", code: stopped}, Killed: isServer,
		Pipe: trouble{args: "DIR --listen 127.0.0.1:0"}, Terminal: plain,
	},
	"get": {
		Bare: bare("get HOST[:PORT] PATH..."), Wrong: trouble{args: "127.0.0.1 a --digest md5", code: cli.ExitUsage, words: "--digest|md5|sha256"},
		Down:    trouble{args: "127.0.0.1:1 a --dir DIR", code: cli.ExitFailure, words: "127.0.0.1:1|connection refused|see whether cinnabar serve-files runs there"},
		Address: trouble{args: "127.0.0.1:port: a", code: cli.ExitUsage, words: "127.0.0.1:port:|[IPV6]:PORT|the first argument is the server"}, Port: portless,
		Interrupt: trouble{args: "FILES endless --dir DIR", ready: "2>^getting endless ", code: interrupted, words: stop},
		Killed:    trouble{args: "FILES endless --dir DIR", ready: "2>^getting endless ", code: cli.ExitFailure, words: `pull "endless" (peer 127.0.0.1:`},
		Pipe:      trouble{args: "FILES small --dir DIR"}, Terminal: plain,
	},
	"ls": {
		Bare: bare("ls HOST[:PORT] [PATH]"), Wrong: trouble{args: "127.0.0.1 -t 0s", code: cli.ExitUsage, words: "--timeout 0s|such as 30s"},
		Down:    trouble{args: "127.0.0.1:1", code: cli.ExitFailure, words: "127.0.0.1:1|connection refused|see whether cinnabar serve-files runs there"},
		Address: trouble{args: "127.0.0.1:port:", code: cli.ExitUsage, words: "127.0.0.1:port:|[IPV6]:PORT|the first argument is the server"}, Port: portless,
		Interrupt: brief, Killed: not("the list is one file of a moment; get is killed in the middle of one"),
		Pipe: trouble{args: "FILES"}, Terminal: plain,
	},
	"devices": {
		Bare: not("it does its work then"), Wrong: trouble{args: "-i 9", code: cli.ExitUsage, words: "cinnabar0|has no port 9"}, Down: alone,
		Address: trouble{args: "--device nope", code: cli.ExitFailure, words: "device 'nope' wasn't found|" + cli.SoftwareDevice}, Port: portless, Interrupt: brief, Killed: alone,
		Pipe: trouble{args: "-v"}, Terminal: plain,
	},
	"pingpong": {
		Bare: not("it does its work then"), Wrong: trouble{args: "-n 0", code: cli.ExitUsage, words: "iters"},
		Down:      trouble{args: "-p 1 127.0.0.1", code: cli.ExitFailure, words: "127.0.0.1:1|connection refused|pingpong"},
		Address:   trouble{args: "--device nope", code: cli.ExitFailure, words: "device 'nope' wasn't found|" + cli.SoftwareDevice},
		Port:      trouble{args: "-p PORT", code: cli.ExitFailure, words: "address already in use|-p"},
		Interrupt: trouble{args: "-p FREE", ready: "local address", code: interrupted, words: stop},
		Killed:    trouble{args: "-n 2000000000 127.0.0.1 -p PINGPONG", ready: "remote address", code: cli.ExitFailure, words: anyLoss + "pingpong: "},
		Pipe:      trouble{args: "-p FREE"}, Terminal: plain,
	},
	"rping": {
		Bare: trouble{code: cli.ExitUsage, words: "exactly one of -s (server) and -c (client)"}, Wrong: trouble{args: "-s -S 22", code: cli.ExitUsage, words: "valid range is 23 to 65535"},
		Down:      trouble{args: "-c -a 127.0.0.1 -p 1", code: cli.ExitFailure, words: "127.0.0.1:1|connection refused|is a server of rping running there?"},
		Address:   trouble{args: "-s --device nope", code: cli.ExitFailure, words: "device 'nope' wasn't found|" + cli.SoftwareDevice},
		Port:      trouble{args: "-s -a 127.0.0.1 -p PORT", code: cli.ExitFailure, words: "127.0.0.1|address already in use"},
		Interrupt: trouble{args: "-c -v -a 127.0.0.1 -p RPING", ready: "^ping data", code: interrupted, words: stop},
		Killed:    trouble{args: "-c -v -a 127.0.0.1 -p RPING", ready: "^ping data", code: cli.ExitFailure, words: anyLoss + "rping: "},
		Pipe:      trouble{args: "-c -v -C 3 -a 127.0.0.1 -p RPING"}, Terminal: plain,
	},
	"compare": {
		Bare: not("it does its work then, which TestTwoProcesses of its package checks"), Wrong: trouble{args: "--size ten", code: cli.ExitUsage, words: "--size|ten|KiB, MiB"},
		Down: alone, Address: alone, Port: portless,
		Interrupt: trouble{args: "--size 1TiB --chunk 16MiB", ready: "between two processes", code: interrupted, words: stop},
		Killed:    trouble{args: "--size 1TiB --chunk 16MiB", ready: "between two processes", code: cli.ExitFailure, words: "the peer process failed: signal: killed"},
		Pipe:      trouble{args: "--size 64KiB"}, Terminal: plain,
	},
	"perf serve": serving("perf serve", "--classes 0"),
	"mem serve":  serving("mem serve", "--longest-lease 0s"),
	"perf rate":  perfTroubles("rate"), "perf bw-read": perfTroubles("bw-read"), "perf bw-write": perfTroubles("bw-write"),
	"perf verbs": {
		Bare: not("it does its work then"), Wrong: trouble{args: "--depth 0", code: cli.ExitUsage, words: "--depth"},
		Down:      trouble{args: "127.0.0.1:1", code: cli.ExitFailure, words: "127.0.0.1:1|connection refused"},
		Address:   trouble{args: "--device nope", code: cli.ExitFailure, words: "device 'nope' wasn't found|" + cli.SoftwareDevice},
		Port:      trouble{args: "--listen 127.0.0.1:PORT", code: cli.ExitFailure, words: "127.0.0.1|address already in use"},
		Interrupt: trouble{args: "VERBS --duration 1h", ready: "^# ", code: interrupted, words: stop},
		Killed:    trouble{args: "VERBS --duration 1h", ready: "^# ", code: cli.ExitFailure, words: anyLoss + "perf verbs: "},
		Pipe:      trouble{args: "--listen 127.0.0.1:0"}, Terminal: plain,
	},
	"perf registration": {
		Bare: not("it does its work then"), Wrong: trouble{args: "--most 1", code: cli.ExitUsage, words: "--most|4.0 KiB"}, Down: alone,
		Address: trouble{args: "--device nope", code: cli.ExitFailure, words: "device 'nope' wasn't found|" + cli.SoftwareDevice}, Port: portless,
		Interrupt: brief, Killed: alone, Pipe: trouble{args: "--most 4KiB"}, Terminal: plain,
	},
	"doctor": {
		Bare: not("it does its work then"), Wrong: trouble{args: "--only nosuch", code: cli.ExitUsage, words: "nosuch|cinnabar doctor --list lists them"},
		Down:    trouble{args: "DOWN --only address", code: cli.ExitFault, words: "127.0.0.1:1|connection refused"},
		Address: trouble{args: "ofi+tcp://host", code: cli.ExitUsage, words: "ofi+tcp://host|HOST:PORT"}, Port: portless,
		Interrupt: trouble{args: "SILENT --only address --timeout 1h", ready: "1 probe, with a time-out of 1h", code: interrupted, words: stop},
		Killed:    trouble{args: "HELD --only address --timeout 1h", code: cli.ExitFault, words: "127.0.0.1"},
		Pipe:      trouble{args: "--list"}, Terminal: plain,
	},
	"info": {
		Bare: not("it does its work then"), Wrong: trouble{args: "--csv --json", code: cli.ExitUsage, words: "--csv|--json"}, Down: alone,
		Address: trouble{args: "nonsense", code: cli.ExitFailure, words: "nonsense"}, Port: portless, Interrupt: brief, Killed: alone,
		Pipe: trouble{args: "tcp"}, Terminal: plain,
	},
	"query": asking("query ADDRESS", "", trouble{args: "SERVER"}),
	"top": asking("top ADDRESS", "", silent).with(func(r *troubles) {
		r.Wrong = trouble{args: "DOWN --interval 1ms", code: cli.ExitUsage, words: "--interval is 1ms|200ms or more"}
		r.Down, r.Interrupt = not("it looks for its terminal first"), not("it needs a terminal; TestTopOnTerminal of its package interrupts it")
		r.Killed = not("it needs a terminal; TestTopOnTerminal of its package ends the server")
		r.Terminal = trouble{args: "SERVER", code: cli.ExitFailure, words: "needs a terminal|cinnabar query --state"}
	}),
	"shutdown": asking("shutdown ADDRESS", "", silent),
	"call": asking("call ADDRESS [NAME]", " sum", silent).with(func(r *troubles) {
		r.Bare.words = "usage: cinnabar call ADDRESS"
	}),
	"ping": asking("ping ADDRESS", "", trouble{args: "SERVER -n 1"}).with(func(r *troubles) {
		r.Down.words = "tcp does not answer|127.0.0.1:1|connection refused|see whether the process runs"
		r.Killed = trouble{args: "SERVING -n 1000000 -i 0 -t 1h", ready: "^handler", code: cli.ExitFailure, words: "of 1000000|HG_HOSTUNREACH|127.0.0.1"}
	}),
	"id": {
		Bare: bare("id NAME"), Wrong: trouble{args: "a -p 65536", code: cli.ExitUsage, words: "--provider|65536|--help"}, Down: alone, Address: alone, Port: portless,
		Interrupt: brief, Killed: alone, Pipe: trouble{args: "sum"}, Terminal: plain,
	},
	"token new": {
		Bare: not("it does its work then"), Wrong: trouble{args: "x", code: cli.ExitUsage, words: "usage: cinnabar token new"}, Down: alone, Address: alone, Port: portless,
		Interrupt: brief, Killed: alone, Pipe: trouble{}, Terminal: plain,
	},
	"wire": {
		Bare: bare("wire FILE"), Wrong: trouble{args: "CAPTURE --follow 0x", code: cli.ExitUsage, words: "--follow|0x|16 hexadecimal digits"}, Down: alone,
		Address: trouble{args: "no-such-file", code: cli.ExitFailure, words: "no-such-file|no such file"}, Port: portless,
		Interrupt: not("TestInterruptOfFullPipe and TestInterruptOfInput do so"), Killed: alone, Pipe: trouble{args: "CAPTURE"}, Terminal: plain,
	},
	"mem alloc": asking("mem alloc ADDRESS SIZE", " 5", trouble{args: "LENDER 5"}),
	"mem stat":  asking("mem stat ADDRESS", "", trouble{args: "LENDER"}),
	"mem put":   region("mem put TOKEN [FILE]", " main.go", silent),
	"mem get":   region("mem get TOKEN", "", trouble{args: "TOKEN"}),
	"mem free":  region("mem free TOKEN", "", silent),
	"version": {
		Bare: not("it does its work then"), Wrong: trouble{args: "x", code: cli.ExitUsage, words: "usage: cinnabar version"}, Down: alone, Address: alone, Port: portless,
		Interrupt: brief, Killed: alone, Pipe: trouble{}, Terminal: plain,
	},
	"help": {
		Bare: not("it does its work then"), Wrong: trouble{args: "sned", code: cli.ExitUsage, words: "sned|did you mean send?"}, Down: alone, Address: alone, Port: portless,
		Interrupt: brief, Killed: alone, Pipe: trouble{args: "send"}, Terminal: plain,
	},
}

// serving returns the row of a command that serves an engine.
func serving(words, wrong string) troubles {
	option, _, _ := strings.Cut(wrong, " ")
	return troubles{
		Bare: bare(words + " ADDRESS"), Wrong: trouble{args: "ofi+tcp " + wrong, code: cli.ExitUsage, words: option}, Down: isServer,
		Address:   trouble{args: "ofi+tcp://192.0.2.77:0", code: cli.ExitFailure, words: "192.0.2.77|HG_ADDRNOTAVAIL"},
		Port:      trouble{args: "ofi+tcp://127.0.0.1:PORT", code: cli.ExitFailure, words: "127.0.0.1|HG_ADDRINUSE|in use"},
		Interrupt: trouble{args: "ofi+tcp://127.0.0.1:0", ready: "^ofi", code: stopped}, Killed: isServer,
		Pipe: trouble{args: "ofi+tcp://127.0.0.1:0"}, Terminal: plain,
	}
}

// region returns the row of a command that uses a region of lent memory.
func region(usage, rest string, pipe trouble) troubles {
	row := troubles{
		Bare: bare(usage), Wrong: trouble{args: "LOST" + rest + " -t 0s", code: cli.ExitUsage, words: "--timeout is 0s|such as 10s"},
		Down:    trouble{args: "LOST" + rest, code: cli.ExitFailure, words: "127.0.0.1:|connection refused|see whether"},
		Address: trouble{args: "nonsense" + rest, code: cli.ExitUsage, words: "nonsense|rmem"}, Port: portless, Pipe: pipe, Terminal: plain,
	}
	row.Interrupt, row.Killed = held("HELDTOKEN" + rest)
	return row
}

// relay passes the connection requests of ofi+tcp between clients and a server, and keeps what the clients send behind them. So a client that was
// connected waits for its answer until drop ends the connection, as the end of a killed server does.
type relay struct {
	listener net.Listener
	server   string
	held     chan struct{} // closed when a client has sent a byte behind its connection request
	once     sync.Once
	wg       sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	conns []*net.TCPConn
}

// greetingLen is the length of a connection request of ofi+tcp, and of its answer.
const greetingLen = 40

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, server: strings.TrimPrefix(server, "ofi+tcp://"), held: make(chan struct{})}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		r.drop()
		r.wg.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.wg.Go(func() { r.pass(c) })
	}
}

// keep remembers a connection for drop.
func (r *relay) keep(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, c.(*net.TCPConn))
}

func (r *relay) pass(client net.Conn) {
	r.keep(client)
	server, err := net.Dial("tcp", r.server)
	if err != nil {
		return // the test fails, because the client is not held
	}
	r.keep(server)
	r.wg.Go(func() { _, _ = io.Copy(client, server) }) // drop ends it
	if _, err := io.CopyN(server, client, greetingLen); err != nil {
		return // ping connects once without a request
	}
	if n, _ := client.Read(make([]byte, 1)); n > 0 {
		r.once.Do(func() { close(r.held) })
	}
}

// drop ends all connections as the system of a killed server does, and accepts no further one.
func (r *relay) drop() {
	cli.Shut(r.listener)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.SetLinger(0) // a reset; fails only on a closed connection
		cli.Shut(c)
	}
	r.conns = nil
}

// scene has the servers of one trouble.
type scene struct {
	*caseWords
	server *testproc.Process // that is killed; nil: the relay, or a child process of the command
	relay  *relay
}

// newScene returns a scene with words whose servers may be shared, in shared, and those that a trouble may break.
func newScene(t *testing.T, shared map[string]string) *scene {
	s := &scene{caseWords: newCaseWords(t)}
	for word, value := range shared {
		s.words[word] = func() string { return value }
	}
	s.words["HELD"] = func() string { return s.hold(shared["SERVER"]) }
	s.words["HELDTOKEN"] = func() string { return tokenAt(t, shared["TOKEN"], s.hold(shared["SERVER"])) }
	s.words["SERVING"] = func() string {
		return s.start(`^ofi\+tcp://127\.0\.0\.1:\d+$`, "perf", "serve", "ofi+tcp://127.0.0.1:0")[0]
	}
	s.words["RECEIVER"] = func() string {
		return s.start(`^waiting for files at (\S+),`, "recv", "--listen", "127.0.0.1:0", "--dir", t.TempDir())[1]
	}
	s.words["FILES"] = func() string { return s.start(servesFiles, "serve-files", "--listen", "127.0.0.1:0", filesDir(t))[1] }
	s.words["PINGPONG"] = func() string {
		port := clitest.FreePort(t)
		s.start("local address", "pingpong", "-p", port, "-n", "2000000000")
		return port
	}
	s.words["RPING"] = func() string {
		return s.start(`^listening on .*:(\d+)$`, "rping", "-s", "-d", "-a", "127.0.0.1", "-p", "0")[1]
	}
	s.words["VERBS"] = func() string {
		return s.start(`127\.0\.0\.1:\d+`, "perf", "verbs", "--listen", "127.0.0.1:0", "--duration", "1h")[0]
	}
	return s
}

// start starts the server that kill ends, and returns the match of a line that it prints.
func (s *scene) start(ready string, args ...string) []string {
	s.t.Helper()
	s.server = clitest.Start(s.t, args...)
	return s.server.Stdout.Expect(ready)
}

func (s *scene) hold(server string) string {
	s.relay = newRelay(s.t, server)
	return "ofi+tcp://" + s.relay.listener.Addr().String()
}

// tokenAt returns a token for a region that another server has.
func tokenAt(t *testing.T, token, server string) string {
	t.Helper()
	scheme, text, _ := strings.Cut(token, ":")
	b, err := base64.RawURLEncoding.DecodeString(text)
	at := bytes.Index(b, []byte("ofi+tcp://"))
	if err != nil || at < 0 {
		t.Fatalf("token %q: %v", token, err)
	}
	return scheme + ":" + base64.RawURLEncoding.EncodeToString(append(b[:at], server...))
}

// await returns when the command is in the middle of its work.
func (s *scene) await(p *testproc.Process, ready string) {
	s.t.Helper()
	if s.relay != nil {
		ctx, cancel := context.WithTimeout(s.t.Context(), clitest.ProcessLimit)
		defer cancel()
		select {
		case <-s.relay.held:
		case <-p.Done():
			s.t.Fatalf("the command ended before its request came: %s", p.Stderr)
		case <-ctx.Done():
			s.t.Fatal("no request came")
		}
		return
	}
	if pattern, ok := strings.CutPrefix(ready, "2>"); ok {
		p.Stderr.Expect(pattern)
		return
	}
	p.Stdout.Expect(ready)
}

// kill ends the server of a command without warning.
func (s *scene) kill(p *testproc.Process) {
	s.t.Helper()
	switch {
	case s.relay != nil:
		s.relay.drop()
	case s.server != nil:
		s.server.Kill()
	default:
		peer, err := os.FindProcess(childOf(s.t, p))
		if err == nil {
			err = peer.Kill()
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// childOf returns the id of the first child of a process that still runs, for which it waits.
func childOf(t *testing.T, p *testproc.Process) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for ; ctx.Err() == nil && !p.Ended(); runtime.Gosched() {
		files, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			t.Skip("no /proc here, which lists the processes")
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				continue // that process has ended
			}
			after := string(text[bytes.LastIndexByte(text, ')')+1:]) // the name before it may have spaces
			if f := strings.Fields(after); len(f) > 1 && f[1] == strconv.Itoa(p.Pid()) {
				child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				if err != nil {
					t.Fatal(err)
				}
				return child
			}
		}
	}
	t.Fatalf("process %d has no child", p.Pid())
	return 0
}

// wantEnd checks the exit code and the output of a command that has met a trouble.
func wantEnd(t *testing.T, c trouble, args []string, p *testproc.Process) {
	t.Helper()
	code, out, text := p.ExitCode(), p.Stdout.String(), p.Stderr.String()
	if code != c.code {
		t.Errorf("%q: exit code %d, want %d: %s", args, code, c.code, text)
	}
	for word := range strings.SplitSeq(c.words, "|") {
		if !strings.Contains(out+text, word) {
			t.Errorf("%q: no %q in the output %q and the error %q", args, word, out, text)
		}
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if last := lines[len(lines)-1]; code != cli.ExitOK && code != cli.ExitFault && !strings.HasPrefix(last, "cinnabar ") {
		t.Errorf("%q: the error is %q, want a line that begins with the command", args, last)
	}
	if i := strings.IndexFunc(out+text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); i >= 0 {
		t.Errorf("%q: the output has control characters, which are for terminals: %q", args, (out + text)[i:])
	}
}

// TestTroubles runs each command through each trouble that it may have. A new command needs a row.
func TestTroubles(t *testing.T) {
	shared := map[string]string{}
	for _, word := range []string{"SERVER", "DOWN", "PORT", "LENDER", "TOKEN", "PERF", "CAPTURE", "SMALL", "ENDLESS", "SILENT", "LOST"} {
		shared[word] = newCaseWords(t).words[word]()
	}
	places := make(chan struct{}, 2)
	seen := map[string]bool{}
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		if isGroup(words, cmd) {
			return
		}
		row, ok := troubleRows[words]
		if !ok {
			t.Fatal("the command has no row")
		}
		seen[words] = true
		t.Parallel()
		places <- struct{}{}
		defer func() { <-places }()
		for i, v := 0, reflect.ValueOf(row); i < v.NumField(); i++ {
			c := v.Field(i).Interface().(trouble)
			name := v.Type().Field(i).Name
			t.Run(name, func(t *testing.T) {
				if name == "Pipe" {
					wantBrokenPipe(t, append(strings.Fields(words), "--help"))
				}
				if c.none != "" {
					t.Logf("%s: %s", name, c.none)
					return
				}
				if c == (trouble{}) && name != "Pipe" {
					t.Fatal("the row says nothing of this trouble")
				}
				s := newScene(t, shared)
				args := s.fields(words, c.args)
				if name == "Pipe" {
					wantBrokenPipe(t, args)
					return
				}
				p := clitest.Start(t, args...)
				switch name {
				case "Interrupt":
					s.await(p, c.ready)
					p.Interrupt()
				case "Killed":
					s.await(p, c.ready)
					s.kill(p)
				default:
					p.CloseInput()
				}
				wantEnd(t, c, args, p)
			})
		}
	})
	for words := range troubleRows {
		if !seen[words] {
			t.Errorf("the table has a row %q, which is no command", words)
		}
	}
}

// wantBrokenPipe fails unless SIGPIPE ends a command whose reader is gone, without a word.
func wantBrokenPipe(t *testing.T, args []string) {
	t.Helper()
	cmd := clitest.Exec(t, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cli.Shut(r)
	cmd.Stdout = w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Errorf("%q: %v, want an end by SIGPIPE; %s", args, err, &stderr)
		return
	}
	// The progress of a transfer is on standard error before its result.
	lines := slices.DeleteFunc(strings.Split(stderr.String(), "\n"), func(line string) bool {
		return line == "" || regexp.MustCompile(`^(sending|getting|small:) `).MatchString(line)
	})
	if status := exit.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGPIPE || len(lines) > 0 {
		t.Errorf("%q: %v, %q; want an end by SIGPIPE, and no error", args, err, &stderr)
	}
}
