package record

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const first = `{"kind":"machine","format":1,"date":"2026-11-23T06:00:00Z","go":"go1.26.8","system":"linux/amd64","processors":2,"commit":"x","rounds":5,"seconds":1}` + "\n"

// TestReadBack reads each kind of line as it was written.
func TestReadBack(t *testing.T) {
	want := &File{
		Machine: Machine{Format: Format, Date: "2026-11-23T06:00:00Z", Go: "go1.26.8", System: "linux/amd64", Processors: 2, Commit: "x", Rounds: 5, Seconds: 1,
			Wake: []Wake{{Idle: 20, P50: 39, P90: 48.5}}},
		Results: []Result{{Op: "rate", Transport: "na+sm", Path: "mercury", Load: Busy, Size: 64, Inflight: 1, Clients: 1, Rounds: []Round{{Usec: 5}, {Usec: 6.25, P50: 5, P99: 9}}}},
		Idle:    []Idle{{Transport: "na+sm", Percent: 0.01, Seconds: 3}},
	}
	var b bytes.Buffer
	for _, v := range []any{want.Machine, want.Results[0], want.Idle[0]} {
		if err := Write(&b, v); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read("x", &b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if Write(&b, 1) == nil {
		t.Error("a number was written as a line")
	}
}

// TestReadRefuses names the file and the line of a text that is no recorded result.
func TestReadRefuses(t *testing.T) {
	result := func(old, new string) string {
		return first + strings.Replace(`{"kind":"result","op":"rate","transport":"na+sm","path":"cinnabar","load":"quiet","size":64,"inflight":1,"clients":1,"rounds":[{"usec":5}]}`, old, new, 1)
	}
	if _, err := Read("x", strings.NewReader(result("", ""))); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ text, want string }{
		{"", "x:1: the file is empty"},
		{"# 2026-11-20, a table\n", "x:1: "},
		{"\n" + first, "x:1: "},
		{"null\n", "x:1: "},
		{"[]\n", "x:1: "},
		{strings.Replace(first, `"format":1`, `"format":2`, 1), "x:1: format 2"},
		{strings.Replace(first, `"rounds":5`, `"rounds":0`, 1), "x:1: 2 processors and 0 rounds"},
		{strings.Replace(first, `"seconds":1`, `"seconds":-1`, 1), "x:1: seconds, late_usec or toll_usec -1"},
		{strings.Replace(first, `"go":`, `"gone":`, 1), "x:1: json: unknown field"},
		{first + first, "x:2: a line of kind"},
		{first + `{"kind":"other"}`, "x:2: a line of the unknown kind"},
		{first + `{"kind":"idle","transport":"na+sm","percent":-1,"seconds":1}`, "x:2: percent or seconds -1"},
		{first + "\n" + result("", ""), "x:2: "},
		{result(`"rate"`, `""`), "x:2: a result without op"},
		{result(`"quiet"`, `"loud"`), `x:2: load "loud"`},
		{result(`"size":64`, `"size":-1`), "x:2: size -1"},
		{result(`"size":64`, `"size":1e300`), "x:2: json: cannot unmarshal"},
		{result(`"clients":1`, `"clients":1,"others":-1`), "x:2: others or stolen -1"},
		{result(`"clients":1`, `"clients":0`), "x:2: 1 calls in flight of 0 clients"},
		{result(`[{"usec":5}]`, `[]`), "x:2: a result without rounds"},
		{result(`[{"usec":5}]`, `[{}]`), "x:2: a round without usec"},
		{result(`"usec":5`, `"usec":1e16`), "x:2: figure of a round 1e+16"},
		{result(`"usec":5`, `"usec":"5"`), "x:2: json: cannot unmarshal"},
		{first + `{"kind":"result",` + strings.Repeat(" ", maxLine), "x:2: bufio.Scanner: token too long"},
	} {
		if _, err := Read("x", strings.NewReader(tt.text)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%.200q: %v, want %s", tt.text, err, tt.want)
		}
	}
}

func TestMedian(t *testing.T) {
	r := Result{Rounds: []Round{{Usec: 4, P50: 9}, {Usec: 1}, {Usec: 3}, {Usec: 100}}}
	if got, ok := r.Median(func(x Round) float64 { return x.Usec }); got != 3.5 || !ok {
		t.Errorf("median %g, %t, want 3.5", got, ok)
	}
	if got, ok := r.Median(func(x Round) float64 { return x.P50 }); got != 9 || !ok {
		t.Errorf("median of the only figure: %g, %t, want 9", got, ok)
	}
	if _, ok := r.Median(func(x Round) float64 { return x.P99 }); ok {
		t.Error("a figure that no round has got a median")
	}
}
