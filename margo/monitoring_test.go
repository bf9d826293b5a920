package margo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar"
	"cinnabar/internal/logtest"
	"cinnabar/stats"
)

// monitored returns the configuration for a document in an environment that enables the monitor, with a prefix in a folder of the test.
func monitored(t *testing.T, document string, env map[string]string) (c *Config, dir string) {
	t.Helper()
	dir = t.TempDir()
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	env[envMonitoring] = ""
	if _, set := env[envPrefix]; !set {
		env[envPrefix] = filepath.Join(dir, "exit")
	}
	c = parsed(t, strings.ReplaceAll(document, "DIR", dir))
	c.enableMonitoring(func(name string) (string, bool) { v, set := env[name]; return v, set })
	return c, dir
}

// filesOf returns the files of a folder by the ends of their names, behind the process number.
func filesOf(t *testing.T, dir string) map[string]any {
	t.Helper()
	host, err := os.Hostname()
	must(t, err)
	list, err := os.ReadDir(dir)
	must(t, err)
	files := map[string]any{}
	for _, entry := range list {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		must(t, err)
		var v any
		must(t, json.Unmarshal(data, &v))
		files[strings.Replace(entry.Name(), fmt.Sprintf(".%s.%d.", host, os.Getpid()), " ", 1)] = v
	}
	return files
}

// TestExitFiles: an engine writes Margo's files when it ends, with the numbers of the calls.
// parity: G88 G89
func TestExitFiles(t *testing.T) {
	c, dir := monitored(t, `{}`, nil)
	c.Pools, c.RPCPool = []cinnabar.PoolConfig{{Name: "own", Workers: 1}}, "own"
	setups := 0
	c.Setup = func(*cinnabar.Engine) error { setups++; return nil }
	server, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", c)
	opened(t, server, err)
	client := calling(t, &cinnabar.Config{NoEager: true})
	must(t, add.Handle(server, handleAdd))
	fetch := cinnabar.NewRPC[cinnabar.BulkHandle, int64]("fetch")
	must(t, fetch.Handle(server, func(ctx context.Context, h cinnabar.BulkHandle) (int64, error) {
		b, err := server.Expose(cinnabar.WriteOnly, make([]byte, 1000))
		if err != nil {
			return 0, err
		}
		n, err := h.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, b)
		return n, errors.Join(err, b.Close())
	}))
	ep := reach(t, client, server)
	for range 3 {
		_, err := add.Call(t.Context(), ep, addIn{})
		must(t, err)
	}
	b, err := client.Expose(cinnabar.ReadOnly, make([]byte, 1000))
	must(t, err)
	_, err = fetch.Call(t.Context(), ep, b.Handle())
	must(t, err)
	must(t, b.Close())
	if files := filesOf(t, dir); len(files) != 0 || setups != 1 {
		t.Errorf("while the engine runs there are the files %v, and Setup was called %d times", files, setups)
	}
	must(t, server.Shutdown(t.Context()))

	files := filesOf(t, dir)
	if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"exit series.json", "exit stats.json"}) {
		t.Fatalf("files %v", names)
	}
	key := "65535:65535:" + decimal(add.ID(65535)) + ":65535"
	if got := find(t, files["exit stats.json"], "rpcs", key, "target", "received from "+client.Addr(), "ult", "duration", "num"); got != 3.0 {
		t.Errorf("%v handlers, want 3", got)
	}
	series := files["exit series.json"]
	if got := find(t, series, "address"); got != server.Addr() {
		t.Errorf("address %v", got)
	}
	for path, want := range map[string]float64{"add:65535 count": 3, "add:65535 bulk_size": 0, "fetch:65535 count": 1, "fetch:65535 bulk_size": 1000} {
		rpc, list, _ := strings.Cut(path, " ")
		total := 0.0
		for _, n := range find(t, series, "rpcs", rpc, list).([]any) {
			total += n.(float64)
		}
		if total != want {
			t.Errorf("%s adds up to %v, want %v", path, total, want)
		}
	}
	for _, pool := range []string{"__primary__", "own"} {
		times := find(t, series, "pools", pool, "timestamps").([]any)
		if n := len(times); n == 0 || len(find(t, series, "pools", pool, "size").([]any)) != n || len(find(t, series, "pools", pool, "total_size").([]any)) != n {
			t.Errorf("pool %s has %d times", pool, n)
		} else if at := times[n-1].(float64); at < float64(time.Now().Add(-time.Hour).Unix()) || at > float64(time.Now().Add(time.Minute).Unix()) {
			t.Errorf("the last sample was taken at %v", at)
		}
	}
}

// TestExitFilesChosen: variables and keys choose the files, and keys precede variables.
func TestExitFilesChosen(t *testing.T) {
	for name, test := range map[string]struct {
		document string
		env      map[string]string
		want     []string
	}{
		"no statistics":        {`{}`, map[string]string{envNoStatistics: ""}, []string{"exit series.json"}},
		"no series":            {`{}`, map[string]string{envNoSeries: "0"}, []string{"exit stats.json"}},
		"nothing":              {`{}`, map[string]string{envNoSeries: "1", envNoStatistics: "1"}, nil},
		"no prefix":            {`{}`, map[string]string{envPrefix: ""}, nil},
		"prefix of a key":      {`{"monitoring":{"config":{"filename_prefix":"DIR/key"}}}`, nil, []string{"key series.json", "key stats.json"}},
		"disabled by keys":     {`{"monitoring":{"config":{"statistics":{"disable":true},"time_series":{"disable":true}}}}`, nil, nil},
		"enabled by keys":      {`{"monitoring":{"config":{"statistics":{"disable":false,"pretty_json":true},"time_series":{"disable":false,"pretty_json":true}}}}`, map[string]string{envNoSeries: "", envNoStatistics: ""}, []string{"exit series.json", "exit stats.json"}},
		"keys of another type": {`{"monitoring":{"config":{"filename_prefix":7,"statistics":[],"time_series":{"disable":"yes","time_interval_sec":null}}}}`, nil, []string{"exit series.json", "exit stats.json"}},
		"another monitor's":    {`{"monitoring":{"name":"mine","config":{"filename":"x"}}}`, nil, []string{"exit series.json", "exit stats.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			var lines logtest.Buffer
			c, dir := monitored(t, test.document, test.env)
			c.Logger = logger(t, &lines, LogLevels{})
			e, err := Open(t.Context(), "ofi+tcp://127.0.0.1", c)
			must(t, err)
			must(t, e.Close())
			if got := slices.Sorted(maps.Keys(filesOf(t, dir))); !slices.Equal(got, test.want) {
				t.Errorf("files %v, want %v", got, test.want)
			}
			if text := lines.String(); text != "" {
				t.Errorf("log lines: %s", text)
			}
		})
	}
}

// TestExitFilesWithout: no engine but one that the environment asks for writes files.
func TestExitFilesWithout(t *testing.T) {
	c := parsed(t, `{}`)
	c.enableMonitoring(func(string) (string, bool) { return "", false })
	if c.Monitor != nil || c.monitoring != nil {
		t.Error("an environment without the variable enables the monitor")
	}
	for name, monitor := range map[string]stats.Monitor{"own statistics": new(Statistics), "own": &seriesMonitor{newTimeSeries(time.Hour), nil}, "none": nil} {
		c, dir := monitored(t, `{}`, nil)
		c.Monitor = monitor
		e, err := Open(t.Context(), "ofi+tcp://127.0.0.1", c)
		must(t, err)
		if got := e.Config().Monitor; got != monitor {
			t.Errorf("%s: the engine has the monitor %v", name, got)
		}
		must(t, e.Close())
		if files := filesOf(t, dir); len(files) != 0 {
			t.Errorf("%s: files %v", name, files)
		}
	}
}

// TestExitFilesFail: a folder that does not exist is a line in the log, and the engine ends. A link at the place of a file is replaced.
func TestExitFilesFail(t *testing.T) {
	var lines logtest.Buffer
	c, _ := monitored(t, `{"monitoring":{"config":{"filename_prefix":"DIR/nosuch/exit"}}}`, nil)
	c.Logger = logger(t, &lines, LogLevels{})
	e, err := Open(t.Context(), "ofi+tcp://127.0.0.1", c)
	must(t, err)
	must(t, e.Close())
	lines.Want(t, 0, "[error] the files of Margo's monitor are not written", "nosuch", "stats.json", "series.json")

	// An engine of which the program's Setup fails ends as well, and so do its samples.
	c, dir := monitored(t, `{}`, nil)
	odd := errors.New("odd")
	c.Setup = func(*cinnabar.Engine) error { return odd }
	if _, err := Open(t.Context(), "ofi+tcp://127.0.0.1", c); !errors.Is(err, odd) {
		t.Errorf("Open returned %v", err)
	}
	if files := filesOf(t, dir); len(files) != 2 {
		t.Errorf("files %v", files)
	}

	victim, link := filepath.Join(dir, "victim"), filepath.Join(dir, "link")
	must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	if err := os.Symlink(victim, link); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	must(t, writeFile(link, []byte("{}"), false))
	if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" {
		t.Errorf("the file behind the link has %q, %v", data, err)
	}
	if data, err := os.ReadFile(link); err != nil || string(data) != "{}" {
		t.Errorf("the file has %q, %v", data, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "link.*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestSamples: the recorder takes a sample in each interval, and a last one at the end.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop, taken := newTimeSeries(time.Second), make(chan struct{}), 0
		snapshot := func() stats.Snapshot {
			taken++
			return stats.Snapshot{Handlers: stats.Pool{Queued: taken, Waiting: 10, Running: 1}}
		}
		done := make(chan struct{})
		go func() { defer close(done); s.run(snapshot, stop) }()
		info := &stats.CallInfo{RPC: "add", ID: 0x10007, Provider: 7}
		begin := time.Now()
		s.request(info)
		s.request(info)
		s.moved(info.ID, 100)
		<-time.NewTimer(1500 * time.Millisecond).C
		s.request(info)
		s.moved(noParent, 50)
		<-time.NewTimer(time.Second).C
		close(stop)
		<-done
		at := func(d time.Duration) seconds { return seconds(float64(begin.Add(d).UnixNano()) / float64(time.Second)) }
		times := []seconds{at(time.Second), at(2 * time.Second), at(2500 * time.Millisecond)}
		want := &seriesJSON{
			Address: "here",
			RPCs: map[string]rpcSamples{
				"add:7":    {Times: times, Count: []uint64{2, 1, 0}, Bytes: []uint64{100, 0, 0}},
				unknownRPC: {Times: times[1:], Count: []uint64{0, 0}, Bytes: []uint64{50, 0}},
			},
			Pools: map[string]poolSamples{"__primary__": {Times: times, Size: []uint64{1, 2, 3}, Total: []uint64{11, 12, 13}}},
		}
		if diff := cmp.Diff(want, s.report("here"), cmp.AllowUnexported(rpcSamples{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestSamplesBounded: neither time nor the number of RPCs and pools lets the recorder grow without end, and no request is lost.
func TestSamplesBounded(t *testing.T) {
	s := newTimeSeries(time.Second)
	state := stats.Snapshot{Pools: map[string]stats.Pool{}}
	for i := range 2 * maxPoolLists {
		state.Pools[fmt.Sprint("pool", i)] = stats.Pool{}
	}
	for i := range 2 * maxRPCSeries {
		s.request(&stats.CallInfo{RPC: fmt.Sprint("rpc", i), ID: uint64(i+1) << 16})
		s.moved(uint64(i+1)<<16, 1)
	}
	const rounds = 3*maxSamples + 1
	for i := range rounds {
		s.request(&stats.CallInfo{RPC: "rpc0", ID: 1 << 16})
		s.sample(time.Unix(int64(i), 0), state)
	}
	f := s.report("here")
	if len(f.RPCs) != maxRPCSeries+1 || len(f.Pools) != maxPoolLists {
		t.Errorf("%d RPCs and %d pools", len(f.RPCs), len(f.Pools))
	}
	total, bytes := uint64(0), uint64(0)
	for name, r := range f.RPCs {
		if len(r.Times) > maxSamples || len(r.Count) != len(r.Times) || len(r.Bytes) != len(r.Times) || !slices.IsSorted(r.Times) {
			t.Fatalf("%s has %d samples", name, len(r.Times))
		}
		for i := range r.Count {
			total, bytes = total+r.Count[i], bytes+r.Bytes[i]
		}
	}
	if want := uint64(2*maxRPCSeries + rounds); total != want || bytes != 2*maxRPCSeries {
		t.Errorf("%d requests and %d bytes, want %d and %d", total, bytes, want, 2*maxRPCSeries)
	}
}
