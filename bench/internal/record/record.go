// Package record is the form in which bench/rpc and bench/files keep their figures and bench/report reads them: lines of JSON, one object each. The
// first line of a file is a [Machine], the others are each a [Result] or an [Idle]. The key "kind" names the type.
package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Format is the version of the form, which each Machine has.
const Format = 1

// Kinds of lines.
const (
	kindMachine = "machine"
	kindResult  = "result"
	kindIdle    = "idle"
)

// Loads of a Result.
const (
	Quiet = "quiet" // the programs of the case alone
	Busy  = "busy"  // beside one process that computes all the time
)

// Machine describes the place and the time of all figures in a file.
type Machine struct {
	Format     int     `json:"format"`
	Date       string  `json:"date"` // and time of the beginning, RFC 3339
	Go         string  `json:"go"`
	System     string  `json:"system"` // "linux/amd64"
	Kernel     string  `json:"kernel,omitempty"`
	Processor  string  `json:"processor,omitempty"`
	Processors int     `json:"processors"`
	Load       string  `json:"load,omitempty"` // averages over 1, 5 and 15 minutes at the beginning
	Commit     string  `json:"commit"`
	Rounds     int     `json:"rounds"`
	Seconds    float64 `json:"seconds"` // of a measurement
	Wake       []Wake  `json:"wake,omitempty"`

	// Late and Toll are times in microseconds by which cinnabar's wake-ups and its signals to other processes were delayed on purpose, to have
	// the prices of another machine.
	Late float64 `json:"late_usec,omitempty"`
	Toll float64 `json:"toll_usec,omitempty"`
}

// Wake is the price of waking a parked thread on another processor that has been idle for a time: from the wake-up to the first instruction of
// the woken thread. Times are in microseconds.
type Wake struct {
	Idle float64 `json:"idle_usec"`
	P50  float64 `json:"p50_usec"`
	P90  float64 `json:"p90_usec"`
}

// Result is the figures of one path of a case under one load.
type Result struct {
	Op        string  `json:"op"`        // "rate", "bw-read", "bw-write", "message"; of bench/files "tree", "synced", "large"
	Transport string  `json:"transport"` // "ofi+tcp", "na+sm", "tcp"
	Path      string  `json:"path"`      // "cinnabar", "mercury", "grpc", "tcp", "tar", "rsync", "copy"
	Load      string  `json:"load"`      // Quiet, Busy
	Size      int64   `json:"size"`      // bytes of a call or transfer
	Inflight  int     `json:"inflight"`  // calls at a time of each client
	Clients   int     `json:"clients"`
	Files     int     `json:"files,omitempty"` // of Size bytes each, in a copy by bench/files
	Rounds    []Round `json:"rounds"`          // in the order of their measurement

	// Others is the number of processors that programs beside the measured ones used meanwhile, and Stolen the number that the host of the virtual
	// machine withheld, on average over all paths of the case.
	Others float64 `json:"others,omitempty"`
	Stolen float64 `json:"stolen,omitempty"`
}

// Round is the figures of one measurement. 0 stands for a figure that the program does not print.
type Round struct {
	Usec  float64 `json:"usec"` // mean of a call or transfer: the time of the measurement divided by their number
	MiB   float64 `json:"mib_per_second,omitempty"`
	P50   float64 `json:"p50_usec,omitempty"`
	P99   float64 `json:"p99_usec,omitempty"`
	Least float64 `json:"least_calls_per_second,omitempty"` // of a client
	Most  float64 `json:"most_calls_per_second,omitempty"`

	Delayed float64 `json:"delayed,omitempty"` // wake-ups and signals of the client that were delayed on purpose
}

// Idle is the processor time of a process with two connected engines that have no traffic any more.
type Idle struct {
	Transport string  `json:"transport"`
	Percent   float64 `json:"percent"` // of one processor
	Seconds   float64 `json:"seconds"`
}

// File is the lines of one file.
type File struct {
	Machine Machine
	Results []Result
	Idle    []Idle
}

// Write writes v, a Machine, a Result or an Idle, as a line.
func Write(w io.Writer, v any) error {
	var kind string
	switch v.(type) {
	case Machine:
		kind = kindMachine
	case Result:
		kind = kindResult
	case Idle:
		kind = kindIdle
	default:
		return fmt.Errorf("record: a %T is not a line", v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "{%q:%q,%s\n", "kind", kind, b[1:])
	return err
}

// maxLine bounds a line, in bytes.
const maxLine = 1 << 20

// Read reads the lines of a file. name stands in errors, with the number of the line.
func Read(name string, r io.Reader) (*File, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	f := &File{}
	n := 0
	for lines.Scan() {
		n++
		if err := f.add(n, lines.Bytes()); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	if n == 0 {
		return nil, fmt.Errorf("%s:1: the file is empty; the first line describes the machine", name)
	}
	return f, nil
}

// add decodes line n.
func (f *File) add(n int, text []byte) error {
	var head struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return err
	}
	if (n == 1) != (head.Kind == kindMachine) {
		return fmt.Errorf("a line of kind %q; the first line, and no other, is of kind %q", head.Kind, kindMachine)
	}
	switch head.Kind {
	case kindMachine:
		if err := decode(text, &f.Machine); err != nil {
			return err
		}
		return f.Machine.check()
	case kindResult:
		var r Result
		if err := decode(text, &r); err != nil {
			return err
		}
		f.Results = append(f.Results, r)
		return r.check()
	case kindIdle:
		var i Idle
		if err := decode(text, &i); err != nil {
			return err
		}
		f.Idle = append(f.Idle, i)
		return checkFigures("percent or seconds", i.Percent, i.Seconds)
	}
	return fmt.Errorf("a line of the unknown kind %q", head.Kind)
}

// decode decodes a line with its key "kind" into v, and refuses keys that v does not have.
func decode[T any](text []byte, v *T) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	delete(fields, "kind")
	rest, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(rest))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func (m *Machine) check() error {
	switch {
	case m.Format != Format:
		return fmt.Errorf("format %d; this program reads format %d", m.Format, Format)
	case m.Processors < 1 || m.Rounds < 1:
		return fmt.Errorf("%d processors and %d rounds; both are at least 1", m.Processors, m.Rounds)
	}
	for _, w := range m.Wake {
		if err := checkFigures("wake-up price", w.Idle, w.P50, w.P90); err != nil {
			return err
		}
	}
	return checkFigures("seconds, late_usec or toll_usec", m.Seconds, m.Late, m.Toll)
}

func (r *Result) check() error {
	switch {
	case r.Op == "" || r.Transport == "" || r.Path == "":
		return errors.New("a result without op, transport or path")
	case r.Load != Quiet && r.Load != Busy:
		return fmt.Errorf("load %q; it is %q or %q", r.Load, Quiet, Busy)
	case r.Size < 0 || r.Size > 1<<40:
		return fmt.Errorf("size %d; it is a number of bytes", r.Size)
	case r.Inflight < 1 || r.Clients < 1:
		return fmt.Errorf("%d calls in flight of %d clients; both are at least 1", r.Inflight, r.Clients)
	case len(r.Rounds) == 0:
		return errors.New("a result without rounds")
	}
	if err := checkFigures("others or stolen", r.Others, r.Stolen); err != nil {
		return err
	}
	for _, x := range r.Rounds {
		if err := checkFigures("figure of a round", x.Usec, x.MiB, x.P50, x.P99, x.Least, x.Most, x.Delayed); err != nil {
			return err
		}
		if x.Usec == 0 {
			return errors.New("a round without usec")
		}
	}
	return nil
}

// checkFigures refuses figures that no measurement yields, which a chart has no place for.
func checkFigures(name string, list ...float64) error {
	const most = 1e15
	for _, x := range list {
		if math.IsNaN(x) || x < 0 || x > most {
			return fmt.Errorf("%s %g; it is between 0 and %g", name, x, most)
		}
	}
	return nil
}

// Median returns the median of a figure over the rounds that have it, and false if none has.
func (r *Result) Median(figure func(Round) float64) (float64, bool) {
	var list []float64
	for _, x := range r.Rounds {
		if v := figure(x); v > 0 {
			list = append(list, v)
		}
	}
	if len(list) == 0 {
		return 0, false
	}
	slices.Sort(list)
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2, true
}
