package filexfer

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/xfer"
)

// words are the words of one side.
type words struct {
	doing, done, peer string
	remedies          map[xfer.Code]string
}

var (
	sendWords = words{doing: "sending", done: "sent", peer: "to", remedies: sendRemedies}
	recvWords = words{doing: "receiving", done: "received", peer: "from", remedies: recvRemedies}
	getWords  = words{doing: "getting", done: "got", peer: "from", remedies: getRemedies}
	// of serve-files, about transfers that a puller has asked for
	serveWords = words{doing: "serving", done: "served", peer: "to"}
)

// reporter prints the events of transfers: lines on both streams, and bars
// where standard error is a terminal. It is safe for concurrent use.
type reporter struct {
	words  words
	pulled words // of transfers that a puller has asked for, at the server; empty: words
	json   bool
	// entries are left out, which do not cross
	leavesOut bool
	terminal  bool // standard error shows bars
	shared    bool // standard output is a terminal too, perhaps the same
	now       func() time.Time
	starts    *audit.Limiter // of the lines about transfers that begin; nil: no bound
	interval  time.Duration  // between looks at the transfers under way, for lines; 0: none
	outlook   *outlook       // of the command, which runs one transfer at a time; nil: none. Not changed while a transfer runs

	mu sync.Mutex
	// the transfers under way that are reported in lines
	// +checklocks:mu
	meters map[*meter]struct{}
	// ends the goroutine that looks at meters; nil: it does not run
	// +checklocks:mu
	endLooks func()
	// +checklocks:mu
	s cli.Streams
	// lives while transfers do, so that a server that waits costs nothing
	// +checklocks:mu
	bars *mpb.Progress
	// bars that are shown
	// +checklocks:mu
	shown int
}

// newReporter returns the reporter of a command. With --log-level it shows no bars, because log lines would break them.
func newReporter(ctx context.Context, words words, jsonLines bool, s cli.Streams) *reporter {
	bars := cli.IsTerminal(s.Err) && cli.LoggerOf(ctx) == nil
	return &reporter{words: words, json: jsonLines, s: s, terminal: bars, shared: cli.IsTerminal(s.Out), now: time.Now,
		interval: lookInterval, meters: map[*meter]struct{}{}}
}

// wordsOf returns the words for a transfer.
func (r *reporter) wordsOf(res xfer.Result) words {
	if res.Pulled && r.pulled.done != "" {
		return r.pulled
	}
	return r.words
}

// noteStart prints a line about a transfer that begins. A receiver bounds them, because a stranger can begin any number of
// transfers that come to nothing; the lines about files that were stored are not bounded.
func (r *reporter) noteStart(res xfer.Result) {
	if r.starts != nil {
		if _, ok := r.starts.Allow(hostquota.HostOf(res.Peer.Addr())); !ok {
			return
		}
	}
	r.notef("%s", r.startLine(res))
}

// notef prints a line about the transfer on standard error. It drops the error
// of the write, because there is no other place to report it.
func (r *reporter) notef(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.aboveLocked(r.s.Err, r.terminal), format+"\n", args...)
}

// resultf prints a line of results on standard output.
func (r *reporter) resultf(format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := fmt.Fprintf(r.aboveLocked(r.s.Out, r.shared), format+"\n", args...)
	return err
}

// aboveLocked is where to write lines meant for w: above the bars, if there are
// some and w may be the terminal that shows them.
//
// +checklocks:r.mu
func (r *reporter) aboveLocked(w io.Writer, terminal bool) io.Writer {
	if r.bars != nil && terminal {
		return r.bars
	}
	return w
}

// listeningEvent is the first line of recv --json.
type listeningEvent struct {
	Event     string `json:"event"` // "listening"
	Address   string `json:"address"`
	Directory string `json:"directory"`
}

// transferEvent is a line of --json about one file. Unknown values are left
// out, or 0.
type transferEvent struct {
	Event        string  `json:"event"`          // "sent", "received" or "failed"
	Path         string  `json:"path,omitempty"` // as the sender's user gave it
	Name         string  `json:"name,omitempty"` // as it crosses
	Peer         string  `json:"peer,omitempty"`
	Bytes        int64   `json:"bytes"`
	Kept         int64   `json:"kept,omitempty"` // of Bytes, those that the receiver had or left out
	Seconds      float64 `json:"seconds"`
	MiBPerSecond float64 `json:"mib_per_second"`
	Protocol     string  `json:"protocol,omitempty"`
	Immediate    bool    `json:"immediate"`
	Buffers      int     `json:"buffers"`
	Chunk        int     `json:"chunk"` // bytes
	Chunks       int64   `json:"chunks"`
	Lanes        int     `json:"lanes,omitempty"` // number of lanes, if several were agreed
	Digest       string  `json:"digest,omitempty"`
	Sum          string  `json:"sum,omitempty"`    // of Digest, in hexadecimal digits
	SHA256       string  `json:"sha256,omitempty"` // Sum, if Digest is sha256
	Error        string  `json:"error,omitempty"`  // of "failed", in words
	Code         string  `json:"code,omitempty"`   // its class
	Remote       bool    `json:"remote,omitempty"`
}

// finished prints how a transfer went on standard output. A failure is printed
// there for programs only; people get it from the caller.
func (r *reporter) finished(path string, res xfer.Result, failure error) error {
	if r.json {
		return r.event(transferred(r.wordsOf(res).done, path, res, failure))
	}
	if failure != nil {
		return nil
	}
	return r.resultf("%s", r.resultLine(res))
}

// event prints one line of JSON.
func (r *reporter) event(e any) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return r.resultf("%s", cli.PrintableJSON(line))
}

// transferred describes a transfer to programs.
func transferred(done, path string, res xfer.Result, failure error) transferEvent {
	e := transferEvent{
		Event: done, Path: path, Name: res.Name, Bytes: res.Size, Kept: res.Kept,
		Seconds: res.Duration.Seconds(), MiBPerSecond: cli.MiBPerSecond(res.Size, res.Duration),
		Immediate: res.Immediate, Buffers: res.Buffers, Chunk: res.Chunk, Chunks: res.Chunks, Lanes: res.Lanes,
	}
	if res.Peer.IsValid() {
		e.Peer = res.Peer.String()
	}
	if res.Protocol != xfer.Auto { // else it came to nothing before that was agreed
		e.Protocol, e.Digest = res.Protocol.String(), digestOf(res).String()
	}
	if sum := hexSum(res); sum != "" && failure == nil {
		if e.Sum = sum; res.Digest == xfer.SHA256 {
			e.SHA256 = sum
		}
	}
	if failure != nil {
		e.Event, e.Error = "failed", cli.OneLine(failure)
		if x, ok := errors.AsType[*xfer.Error](failure); ok {
			e.Code, e.Remote = x.Code.String(), x.Remote
		}
	}
	return e
}

// digestOf is how the whole file was compared: the basic protocol does not.
func digestOf(res xfer.Result) xfer.Digest {
	if res.Protocol == xfer.Basic {
		return xfer.NoDigest
	}
	return res.Digest
}

// hexSum is the file's digest, or "" if the transfer made none.
func hexSum(res xfer.Result) string {
	if res.Sum == [32]byte{} {
		return ""
	}
	return hex.EncodeToString(res.Sum[:])
}

// resultLine describes a transfer that is complete.
func (r *reporter) resultLine(res xfer.Result) string {
	w := r.wordsOf(res)
	line := fmt.Sprintf("%s %s: %d bytes %s %s in %.3f s, %.1f MiB/s",
		w.done, cli.Printable(res.Name), res.Size, w.peer, res.Peer, res.Duration.Seconds(), cli.MiBPerSecond(res.Size, res.Duration))
	if res.Lanes > 1 {
		line += fmt.Sprintf(", %d lanes", res.Lanes)
	}
	if res.Kept > 0 {
		line += fmt.Sprintf(", %d bytes were there", res.Kept)
		if r.leavesOut {
			line += " or left out"
		}
	}
	if sum := hexSum(res); sum != "" {
		line += ", " + res.Digest.String() + " " + sum
	}
	return line
}

// startLine describes a transfer that begins: the agreed protocol,
// and the form of the basic one.
func (r *reporter) startLine(res xfer.Result) string {
	size, buffers, lanes := "size unknown", "buffers", ""
	if res.Size >= 0 {
		size = cli.SizeText(res.Size)
	}
	if res.Buffers == 1 {
		buffers = "buffer"
	}
	if res.Lanes > 1 {
		lanes = fmt.Sprintf(" for each of %d lanes", res.Lanes)
	}
	w := r.wordsOf(res)
	return fmt.Sprintf("%s %s (%s) %s %s: %s, %d %s of %s%s, digest %s",
		w.doing, cli.Printable(res.Name), size, w.peer, res.Peer, protocolForm(res),
		res.Buffers, buffers, cli.SizeText(int64(res.Chunk)), lanes, digestOf(res))
}

// protocolForm names the protocol. The basic one has two forms.
func protocolForm(res xfer.Result) string {
	switch {
	case res.Protocol != xfer.Basic:
		return res.Protocol.String() + " protocol"
	case res.Immediate:
		return "basic protocol (write with immediate data)"
	}
	return "basic protocol (write, then send: one side's device lacks immediate data)"
}

// explain adds the remedy to a failure.
func (r *reporter) explain(err error) error {
	x, ok := errors.AsType[*xfer.Error](err)
	if !ok {
		return err
	}
	if remedy := r.words.remedies[x.Code]; remedy != "" {
		return fmt.Errorf("%w; %s", err, remedy)
	}
	return err
}

var sendRemedies = map[xfer.Code]string{
	xfer.CodeName:        "rename the file; names that begin with a dot need recv --allow-dotfiles, and links out of a directory recv --allow-links",
	xfer.CodeExists:      "rename the file, or let the receiver replace files (recv --overwrite)",
	xfer.CodeStorage:     "the receiver needs room and the right to write where it puts files (recv --dir)",
	xfer.CodeSource:      "check the file and its disk",
	xfer.CodeChanged:     "send it again when nothing writes to it",
	xfer.CodeCorrupt:     "send it again; if that repeats, suspect the memory or disk of one side",
	xfer.CodeTooLarge:    "ask for less with --chunk and --buffers",
	xfer.CodeBusy:        "try again later, or raise the receiver's limits (recv --max-connections, --max-memory)",
	xfer.CodeUnsupported: "try without --protocol, --digest and --delete",
	xfer.CodeTimeout:     "see whether the receiver still runs; --timeout waits longer",
	xfer.CodeLost:        "see whether cinnabar recv runs there and can be reached; it listens on its own machine's loopback address unless it is started with --listen ADDR",
}

var getRemedies = map[xfer.Code]string{
	xfer.CodeName:        "cinnabar ls lists the files of the server; names that begin with a dot need --allow-dotfiles, at serve-files too, and links out of a directory --allow-links",
	xfer.CodeExists:      "--overwrite replaces files",
	xfer.CodeStorage:     "make room and see to the rights, or choose another --dir",
	xfer.CodeSource:      "cinnabar ls lists the files of the server",
	xfer.CodeChanged:     "pull it again when nothing writes to it",
	xfer.CodeCorrupt:     "pull it again; if that repeats, suspect the memory or disk of one side",
	xfer.CodeTooLarge:    "ask for less at once",
	xfer.CodeBusy:        "try again later, or raise the server's limits (serve-files --max-connections, --max-memory)",
	xfer.CodeUnsupported: "see whether cinnabar serve-files runs there, and try without --digest and --delete",
	xfer.CodeTimeout:     "see whether the server still runs; --timeout waits longer",
	xfer.CodeLost:        "see whether cinnabar serve-files runs there and can be reached; it listens on its own machine's loopback address unless it is started with --listen ADDR",
}

var recvRemedies = map[xfer.Code]string{
	xfer.CodeExists:      "--overwrite replaces files",
	xfer.CodeStorage:     "make room and see to the rights, or choose another --dir",
	xfer.CodeChanged:     "have it sent again when nothing writes to it",
	xfer.CodeCorrupt:     "have it sent again; if that repeats, suspect the memory or disk of one side",
	xfer.CodeBusy:        "--max-connections and --max-memory raise the limits",
	xfer.CodeTimeout:     "--timeout waits longer",
	xfer.CodeUnsupported: "the two programs may be of different versions, or --digest names a digest that the sender did not ask for",
}
