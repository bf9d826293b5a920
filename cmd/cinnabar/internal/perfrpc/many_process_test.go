package perfrpc

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/testproc"
)

// lineKeys are the keys of an object of --json, in their order.
var lineKeys = []string{
	"op", "transport", "size", "inflight", "count", "usec_per_call", "calls_per_second", "mib_per_second", "p50_usec", "p99_usec",
}

// startServers starts servers in one process and returns their addresses.
func startServers(t *testing.T, classes int, args ...string) (*testproc.Process, []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "port.cfg")
	server, first := startServe(t, append(args, "--once", "--classes", strconv.Itoa(classes), "--port-file", file)...)
	text, err := os.ReadFile(file) // it was there before the first line
	if err != nil {
		t.Fatal(err)
	}
	addresses := strings.Fields(string(text))
	if len(addresses) != classes || addresses[0] != first || len(slices.Compact(slices.Sorted(slices.Values(addresses)))) != classes {
		t.Fatalf("the port file of %d servers, the first at %s, has %q", classes, first, text)
	}
	return server, addresses
}

// Several clients at several servers: all take part, the data is right, and the clients' DONE ends all servers.
// parity: H121
func TestClientsAtServers(t *testing.T) {
	for _, tt := range []struct {
		servers int
		client  string
		calls   int64
	}{
		{1, "rate --size 64 --count 20 --clients 3 --inflight 2", 120},
		{3, "rate --size 64 --count 20 --clients 2 --inflight 2 --barrier", 80},
		{2, "bw-read --size 4KiB --count 5 --clients 3 --inflight 3 --transfers 2 --verify", 45},
		{3, "bw-write --size 4KiB --count 5 --clients 2 --inflight 4 --transfers 2 --verify --barrier", 40},
		{4, "bw-write --size 4KiB --count 5 --verify", 5}, // three of the servers get no call, and DONE all the same
	} {
		t.Run(tt.client, func(t *testing.T) {
			t.Parallel()
			server, addresses := startServers(t, tt.servers)
			args := append(strings.Fields("perf "+tt.client+" --json"), addresses...)
			code, out := clitest.RunProcess(t, args...)
			if code != 0 || out.Stderr.String() != "" {
				t.Fatalf("exit code %d: %s", code, out.Stderr)
			}
			clitest.WantOK(t, server)
			var keys []string
			for _, m := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(out.Stdout.String(), -1) {
				keys = append(keys, m[1])
			}
			want := slices.Clone(lineKeys)
			if strings.Contains(tt.client, "--clients") {
				want = append(want, "clients")
				if !strings.Contains(tt.client, "--barrier") {
					want = append(want, "least_calls_per_second", "most_calls_per_second")
				}
			}
			if !slices.Equal(keys, want) {
				t.Errorf("keys %q, want %q", keys, want)
			}
			if want := fmt.Sprintf(`"count":%d,`, tt.calls); !strings.Contains(out.Stdout.String(), want) {
				t.Errorf("%s\ndoes not have %s", out.Stdout, want)
			}
		})
	}
}

// TestManyClients measures with more clients than connect at a time. The environment variable
// CINNABAR_LARGE raises their number to 10,000, or to those that the limit of open files has room for. They come from several addresses then.
func TestManyClients(t *testing.T) {
	clients := 2 * warmTogether
	if os.Getenv("CINNABAR_LARGE") != "" {
		clients = maxClients
		if limit, known := openFiles(); known {
			clients = min(clients, (limit-spareFiles)/(engineFiles+connectionFiles))
		}
	}
	server, address := startServe(t, "--once", "--max-connections", strconv.Itoa(2*clients))
	client := clitest.Start(t, "perf", "rate", address, "--size", "8", "--count", "2", "--json", "--clients", strconv.Itoa(clients))
	client.SetLimit(10 * time.Minute)
	if code := client.ExitCode(); code != 0 {
		t.Fatalf("exit code %d: %s", code, client.Stderr)
	}
	var l reportLine
	if err := json.Unmarshal([]byte(client.Stdout.String()), &l); err != nil || l.Clients != clients || l.Count != int64(2*clients) || l.Least <= 0 || l.Most < l.Least {
		t.Errorf("%d clients: %+v, %v", clients, l, err)
	}
	clitest.WantOK(t, server)
	t.Logf("%d clients", clients)
}

// mpi builds the library by which Mercury's programs become the processes of one client.
func mpi(t *testing.T) (dir string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir = t.TempDir()
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libmpi.so"), "testdata/mpi.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// Several processes of one client of Mercury's measure several servers of ours, as under mpirun: each announces the
// memory of its handles, whose numbers are counted over all of them.
// parity(peer): H121 H122
func TestMercuryProcesses(t *testing.T) {
	mercury(t, "hg_rate")
	library := mpi(t)
	for _, args := range [][]string{
		{"hg_rate", "-y", "8", "-z", "64", "-l", "10", "-x", "3"},
		{"hg_rate", "-y", "8", "-z", "64", "-l", "10", "-x", "3", "-B"},
		{"hg_bw_read", "-y", "4096", "-z", "8192", "-l", "3", "-w", "2", "-x", "3", "-v"},
		{"hg_bw_write", "-y", "4096", "-z", "8192", "-l", "3", "-w", "2", "-x", "3", "-v"},
		{"hg_bw_write", "-y", "4096", "-z", "8192", "-l", "3", "-w", "2", "-R", "-B"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			server, addresses := startServers(t, 2)
			dir := t.TempDir()
			if err := writePortFile(filepath.Join(dir, "port.cfg"), addresses); err != nil {
				t.Fatal(err)
			}
			shared := filepath.Join(dir, "ranks")
			if err := os.WriteFile(shared, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			const ranks = 3
			var clients []*testproc.Process
			for rank := range ranks {
				env := []string{
					"LD_LIBRARY_PATH=" + library + ":" + os.Getenv("LD_LIBRARY_PATH"),
					"RANKS_FILE=" + shared, fmt.Sprint("RANK=", rank), fmt.Sprint("RANKS=", ranks),
				}
				clients = append(clients, startMercury(t, dir, env, args[0], args[1:]...))
			}
			for _, client := range clients {
				wantMeasured(t, client, args)
			}
			if !strings.Contains(clients[0].Stdout.String(), "# 3 client process(es)") {
				t.Errorf("the client says\n%s", clients[0].Stdout)
			}
			clitest.WantOK(t, server) // DONE of the first process ends it
		})
	}
}

// Several clients of ours measure several servers of one hg_perf_server.
// parity(peer): H121
func TestMercuryClasses(t *testing.T) {
	mercury(t, "hg_perf_server") // skips here, not in each part
	for _, args := range [][]string{
		{"rate", "--size", "64", "--count", "10", "--clients", "3", "--inflight", "2"},
		{"bw-read", "--size", "4096..65536", "--count", "3", "--transfers", "2", "--clients", "3", "--inflight", "2", "--verify"},
		{"bw-write", "--size", "4096..65536", "--count", "3", "--transfers", "2", "--clients", "2", "--inflight", "3", "--verify", "--barrier"},
	} {
		t.Run(args[0], func(t *testing.T) { measureMercury(t, []string{"-C", "2"}, args) })
	}
}
