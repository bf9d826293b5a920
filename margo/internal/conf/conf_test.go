package conf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

// TestAccepted runs the documents of testdata/accepted, each of which must be a fixed point once it is written.
// parity: G80 G81 G82 G83 G84
func TestAccepted(t *testing.T) {
	datadriven.RunTest(t, "testdata/accepted", func(t *testing.T, d *datadriven.TestData) string {
		c, o, env := parseCase(t, d)
		wantFixedPoint(t, c, env)
		return differences(t, c, o)
	})
}

// parseCase parses a document with the options and the environment of its command line.
func parseCase(t *testing.T, d *datadriven.TestData) (*Config, Options, func(string) string) {
	t.Helper()
	var o Options
	set := map[string]string{}
	for _, a := range d.CmdArgs {
		if a.Key == "names" {
			o.UseNames = true
		} else {
			set[a.Key] = a.Vals[0]
		}
	}
	env := func(name string) string { return set[name] }
	c, err := Parse([]byte(d.Input), env)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return c, o, env
}

// wantFixedPoint has what is written read and written again, in all formats.
func wantFixedPoint(t *testing.T, c *Config, env func(string) string) {
	t.Helper()
	for _, o := range []Options{{}, {UseNames: true}, {Pretty: true}} {
		first := written(t, c, o)
		again, err := Parse([]byte(first), env)
		if err != nil {
			t.Fatalf("%+v: what is written is refused: %v\n%s", o, err, first)
		}
		if diff := cmp.Diff(first, written(t, again, o)); diff != "" {
			t.Errorf("%+v: no fixed point:\n%s", o, diff)
		}
		if diff := cmp.Diff(c.Notes(), again.Notes()); diff != "" {
			t.Errorf("%+v: other notes:\n%s", o, diff)
		}
	}
}

func written(t *testing.T, c *Config, o Options) string {
	t.Helper()
	b, err := c.Append(nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// differences lists the keys whose values differ from the default ones, and the notes.
func differences(t *testing.T, c *Config, o Options) string {
	t.Helper()
	standard, is := flat(t, written(t, Default(), o)), flat(t, written(t, c, o))
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(is)) {
		if is[key] != standard[key] {
			fmt.Fprintf(&b, "%s: %s\n", key, is[key])
		}
	}
	for _, note := range c.Notes() {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	if b.Len() == 0 {
		return "as the default\n"
	}
	return b.String()
}

// flat is a document's keys and those of its objects, with their values as they are written.
func flat(t *testing.T, document string) map[string]string {
	t.Helper()
	list := map[string]string{}
	var top map[string]json.RawMessage
	if err := json.Unmarshal([]byte(document), &top); err != nil {
		t.Fatal(err)
	}
	for key, value := range top {
		var sub map[string]json.RawMessage
		if json.Unmarshal(value, &sub) != nil {
			list[key] = string(value)
		}
		for name, v := range sub {
			list[key+"."+name] = string(v)
		}
	}
	return list
}

// TestRefused runs the documents of testdata/refused: the error names the key.
// parity: G81 G82 G83 G84
func TestRefused(t *testing.T) {
	datadriven.RunTest(t, "testdata/refused", func(_ *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		for line := range strings.Lines(d.Input) {
			c, err := Parse([]byte(strings.TrimSpace(line)), os.Getenv)
			if err == nil {
				return fmt.Sprintf("%s is accepted: %+v", line, c)
			}
			b.WriteString(err.Error() + "\n")
		}
		return b.String()
	})
}

// TestHostile has documents that would cost more than they are worth.
// parity: G81
func TestHostile(t *testing.T) {
	deep := strings.Repeat(`{"a":`, maxDepth+2) + "1" + strings.Repeat("}", maxDepth+2)
	many := `{"argobots":{"pools":[` + commas("{}", maxPools+1) + `]}}`
	for name, tc := range map[string]struct{ document, want string }{
		"too long":       {`{"a":"` + strings.Repeat("x", maxBytes) + `"}`, "at most 1048576"},
		"too deep":       {`{"monitoring":{"config":` + deep + `}}`, "nested more than 32 deep"},
		"deep arrays":    {strings.Repeat("[", 20000), "no JSON"},
		"many pools":     {many, "argobots.pools: has 1025 elements; at most 1024"},
		"many threads":   {`{"rpc_thread_count":1000000}`, "rpc_thread_count: want a number from"},
		"long key":       {`{"` + strings.Repeat("k", 5000) + `":1}`, strings.Repeat("k", 64) + "...: no such key"},
		"long name":      {`{"rpc_pool":"` + strings.Repeat("k", 5000) + `"}`, `there is no pool "` + strings.Repeat("k", 64) + `..."`},
		"bad UTF-8":      {"{\"argobots\":{\"pools\":[{\"name\":\"\xff\"}]}}", "argobots.pools[0].name: want letters"},
		"not an object":  {`[]`, "want an object, got an array"},
		"nothing":        {``, "no JSON at byte 0"},
		"cut":            {`{"argobots":{"pools":[`, "no JSON at byte 22"},
		"two documents":  {`{} {}`, "no JSON at byte 4"},
		"twice":          {`{"mercury":{"stats":true,"stats":false}}`, "mercury.stats: occurs twice"},
		"huge number":    {`{"handle_cache_size":123456789012345678901234567890}`, "handle_cache_size: want a number from 0"},
		"one pool more":  {`{"argobots":{"pools":[` + commas("{}", maxPools) + `]}}`, "argobots.pools: there are 1025 with those that other keys add"},
		"streams more":   {`{"argobots":{"pools":[{}],"xstreams":[` + commas(`{"scheduler":{"pools":[0]}}`, 100) + `]},"rpc_thread_count":4000}`, "argobots.xstreams: there are 4101 with"},
		"terminal":       {"{\"\\u001b[2J\\u009bm\":1}", `"\x1b[2J\u009bm": no such key`},
		"long pool":      {`{"argobots":{"pools":[` + commas(`{"name":"`+strings.Repeat("k", 5000)+`"}`, 2) + `]}}`, "argobots.pools[1].name: "},
		"cut rune":       {`{"rpc_pool":"` + strings.Repeat("k", 63) + `é"}`, `there is no pool "` + strings.Repeat("k", 63) + `..."`},
		"twice in depth": {`{"monitoring":{"config":{"a":[{"b":1,"b":2}]}}}`, "monitoring.config.a[0].b: occurs twice"},
	} {
		c, err := Parse([]byte(tc.document), os.Getenv)
		if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: %+v, error %.300v, want one with %q", name, c, err, tc.want)
		}
	}
}

// commas is text n times, with commas between.
func commas(text string, n int) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }

// TestEnvironmentLimits: a variable that no document could say is as good as none, so that what is written can be read.
func TestEnvironmentLimits(t *testing.T) {
	for text, want := range map[string]int64{"2147483647": maxCount, "2147483648": defaultStackSize, "-1": defaultStackSize, "many": defaultStackSize} {
		env := func(name string) string { return map[string]string{"ABT_THREAD_STACKSIZE": text}[name] }
		c, err := Parse([]byte(`{}`), env)
		if err != nil {
			t.Fatal(err)
		}
		if c.StackSize != want {
			t.Errorf("%s: %d, want %d", text, c.StackSize, want)
		}
		wantFixedPoint(t, c, env)
	}
}

// FuzzParse has whatever is accepted be a fixed point.
// parity: G80
func FuzzParse(f *testing.F) {
	for _, file := range []string{"testdata/accepted", "testdata/refused"} {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.SplitAfter(string(b), "parse") {
			document, _, _ := strings.Cut(part, "----")
			if i := strings.IndexByte(document, '{'); i >= 0 {
				f.Add([]byte(document[i:]))
			}
		}
	}
	none := func(string) string { return "" }
	f.Fuzz(func(t *testing.T, document []byte) {
		if c, err := Parse(document, none); err == nil {
			wantFixedPoint(t, c, none)
		}
	})
}

// TestNetwork goes from a network to keys and back.
// parity: H19 G82
func TestNetwork(t *testing.T) {
	for _, tc := range []struct{ was, network, subnet, format string }{
		{`{}`, "10.0.0.0/8", "10.0.0.0/8", "unspec"},
		{`{}`, "0.0.0.0/0", "", "ipv4"},
		{`{}`, "::/0", "", "ipv6"},
		{`{"mercury":{"ip_subnet":"10.0.0.0/8","na_addr_format":"ipv4"}}`, "10.0.0.0/8", "10.0.0.0/8", "ipv4"},
		{`{"mercury":{"ip_subnet":"10.0.0.0/8","na_addr_format":"ipv4"}}`, "2001:db8::/32", "2001:db8::/32", "unspec"},
		{`{"mercury":{"na_addr_format":"ipv6"}}`, "", "", "unspec"},
	} {
		c, err := Parse([]byte(tc.was), os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		var p netip.Prefix
		if tc.network != "" {
			p = netip.MustParsePrefix(tc.network)
		}
		c.Mercury.SetNetwork(p)
		got, err := c.Mercury.Network()
		if err != nil || got != p || c.Mercury.Subnet != tc.subnet || c.Mercury.AddrFormat != tc.format {
			t.Errorf("%s, %s: %q and %q, then %v, %v", tc.was, tc.network, c.Mercury.Subnet, c.Mercury.AddrFormat, got, err)
		}
	}
}

// TestSetPools replaces pools; progress and RPCs keep theirs if they can.
// parity: G83
func TestSetPools(t *testing.T) {
	c, err := Parse([]byte(`{"argobots":{"pools":[{"name":"a"},{"name":"b"}],"xstreams":[{"scheduler":{"pools":[0,1]}}]},"progress_pool":"a","rpc_pool":"b"}`), os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	before := written(t, c, Options{})
	d := c.Clone()
	if err := d.SetPools([]Pool{{Kind: "fifo", Name: "b", Access: "mpmc"}, {Kind: "prio_wait", Name: "c", Access: "mpmc"}}, []int{2, 0}); err != nil {
		t.Fatal(err)
	}
	if d.Pools[d.RPCPool].Name != "b" || d.Pools[d.ProgressPool].Name != Primary {
		t.Errorf("%+v", d)
	}
	if d.Servers(d.Pool("b")) != 2 || d.Servers(d.Pool("c")) != 0 || d.Servers(d.Pool(Primary)) != 1 {
		t.Errorf("%+v", d.Xstreams)
	}
	was := written(t, d, Options{})
	err = d.SetPools([]Pool{{Name: "a"}, {Name: "b"}}, []int{maxXstreams - 3, 3})
	if err == nil || !strings.Contains(err.Error(), `3 workers of "b" are too many; at most 4095`) || written(t, d, Options{}) != was {
		t.Errorf("too many streams: %v", err)
	}
	if after := written(t, c, Options{}); after != before {
		t.Errorf("the original has changed to %s", after)
	}
}

// TestDefault compares the empty document's configuration with what margo_get_config of Margo 0.24 prints for one.
// parity(recorded): H10 G80
func TestDefault(t *testing.T) {
	want, err := os.ReadFile("testdata/default.json")
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, want); err != nil {
		t.Fatal(err)
	}
	c := Default()
	yes, in, out := true, int64(4064), int64(4080)
	c.Mercury.Address, c.Mercury.Listening, c.Mercury.InputEager, c.Mercury.OutputEager = "ofi+tcp://127.0.0.1:34965", &yes, &in, &out
	if diff := cmp.Diff(compact.String(), written(t, c, Options{})); diff != "" {
		t.Error(diff)
	}
}
