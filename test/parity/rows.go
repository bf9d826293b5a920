package main

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

const rowsFile = "test/parity/rows.tsv"

// columns are those of rows.tsv, separated by tabs. A line that begins with "# " is a heading of the page, one that begins
// with "> " a paragraph below it.
var columns = []string{"id", "level", "feature", "needs", "state", "reason", "note"}

// levels of rows: those of the systems that cinnabar is compared with, and DEMAND for public reports of their users.
var levels = []string{"MUST", "CORE", "FULL", "BEYOND", "DEMAND"}

// row is one feature.
type row struct {
	line    int
	id      string
	level   string
	feature string
	needs   string // "C": only a program in C or C++, or a recording of one, is a proof
	state   state  // stated; empty where the markers decide
	reason  string // which part of it lacks, which later work brings it, or the reason why it is not here
	note    string
	section int // index of its heading
}

// section is a heading of the page with the paragraphs below it.
type section struct {
	title string
	text  []string
}

// state of a row.
type state string

const (
	byDefault state = "by default"
	slow      state = "slow part of CI"
	withPeer  state = "with a C peer"
	inVM      state = "virtual machine"
	partial   state = "partial"
	planned   state = "planned"
	notHere   state = "not here"
	unproven  state = "no state"
)

// states in the order in which they are counted.
var states = []state{byDefault, slow, withPeer, inVM, partial, planned, notHere, unproven}

// stated are the states that rows.tsv may give.
var stated = []state{"", partial, planned, notHere}

var rowID = regexp.MustCompile(`^[A-Z][0-9]{2,3}$`)

// readRows reads rows.tsv.
func readRows(fsys fs.FS) ([]row, []section, error) {
	data, err := fs.ReadFile(fsys, rowsFile)
	if err != nil {
		return nil, nil, err
	}
	var rows []row
	var sections []section
	header := strings.Join(columns, "\t")
	for n, l := range strings.Split(strings.TrimRight(string(data), "\n"), "\n") {
		n++
		title, isTitle := strings.CutPrefix(l, "# ")
		text, isText := strings.CutPrefix(l, "> ")
		switch {
		case n == 1 && l != header:
			return nil, nil, fmt.Errorf("%s: its first line is not %q", rowsFile, header)
		case n == 1 || l == "":
		case isTitle:
			sections = append(sections, section{title: title})
		case len(sections) == 0:
			return nil, nil, fmt.Errorf("%s:%d: it has no heading above it", rowsFile, n)
		case isText:
			s := &sections[len(sections)-1]
			s.text = append(s.text, text)
		default:
			r, err := parseRow(l)
			if err != nil {
				return nil, nil, fmt.Errorf("%s:%d: %w", rowsFile, n, err)
			}
			r.line, r.section = n, len(sections)-1
			rows = append(rows, r)
		}
	}
	return rows, sections, nil
}

func parseRow(l string) (row, error) {
	c := strings.Split(l, "\t")
	if len(c) != len(columns) {
		return row{}, fmt.Errorf("%d columns, want %d", len(c), len(columns))
	}
	r := row{id: c[0], level: c[1], feature: c[2], needs: c[3], state: state(c[4]), reason: c[5], note: c[6]}
	switch {
	case !rowID.MatchString(r.id):
		return r, fmt.Errorf("id %q", r.id)
	case !slices.Contains(levels, r.level):
		return r, fmt.Errorf("%s: level %q", r.id, r.level)
	case r.feature == "":
		return r, fmt.Errorf("%s: no feature", r.id)
	case r.needs != "" && r.needs != "C":
		return r, fmt.Errorf("%s: needs %q", r.id, r.needs)
	case !slices.Contains(stated, r.state):
		return r, fmt.Errorf("%s: state %q", r.id, r.state)
	case r.state != "" && r.reason == "":
		return r, fmt.Errorf("%s: %q without its reason", r.id, r.state)
	case r.state == "" && r.reason != "":
		return r, fmt.Errorf("%s: a reason without a state", r.id)
	}
	for _, cell := range c {
		if strings.Contains(cell, "|") || strings.TrimSpace(cell) != cell {
			return r, fmt.Errorf("%s: cell %q", r.id, cell)
		}
	}
	return r, nil
}

// table is all rows with their proofs.
type table struct {
	rows     []row
	sections []section
	proofs   map[string][]proof // by row
	bad      []string           // markers that are wrong
}

func readTable(fsys fs.FS) (*table, error) {
	rows, sections, err := readRows(fsys)
	if err != nil {
		return nil, err
	}
	markers, bad, err := readMarkers(fsys)
	if err != nil {
		return nil, err
	}
	t := &table{rows: rows, sections: sections, proofs: map[string][]proof{}, bad: bad}
	for _, m := range markers {
		for _, id := range m.ids {
			t.proofs[id] = append(t.proofs[id], m.proof)
		}
	}
	for _, list := range t.proofs {
		slices.SortFunc(list, compareProofs)
	}
	return t, nil
}

// stateOf returns the state of a row: the stated one, or the best that its proofs give.
func (t *table) stateOf(r row) state {
	if r.state != "" {
		return r.state
	}
	best := unproven
	for _, p := range t.proofs[r.id] {
		s := p.variant.state()
		if r.needs == "C" && p.variant == runsDefault {
			continue
		}
		if slices.Index(states, s) < slices.Index(states, best) {
			best = s
		}
	}
	return best
}

// faults returns the mistakes in rows and markers, each as a line.
func (t *table) faults() []string {
	bad := slices.Clone(t.bad)
	known := map[string]bool{}
	for _, r := range t.rows {
		if known[r.id] {
			bad = append(bad, fmt.Sprintf("%s:%d: %s a second time", rowsFile, r.line, r.id))
		}
		known[r.id] = true
		proofs := len(t.proofs[r.id])
		switch s := t.stateOf(r); {
		case s == unproven && r.needs == "C" && proofs > 0:
			bad = append(bad, fmt.Sprintf("%s:%d: %s needs a peer in C, and no test of it has one", rowsFile, r.line, r.id))
		case s == unproven:
			bad = append(bad, fmt.Sprintf("%s:%d: %s has no state: no test carries its marker", rowsFile, r.line, r.id))
		case s == notHere && proofs > 0:
			bad = append(bad, fmt.Sprintf("%s:%d: %s is not here, and %s proves it", rowsFile, r.line, r.id, t.proofs[r.id][0].name))
		}
	}
	for id, list := range t.proofs {
		if !known[id] {
			bad = append(bad, fmt.Sprintf("%s: marker of %s, which is no row", list[0].name, id))
		}
	}
	slices.Sort(bad)
	return bad
}
