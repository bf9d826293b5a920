// Command grpctls compares package native over ofi+tcps with gRPC-Go over TLS, and with crypto/tls alone, in one run:
//
//	go run . [-rounds N] [-duration D] [-case TEXT] [-path TEXT] [-bars]
//
// Each path has a server in a process of its own, which this program starts and which ends with it. All use TLS 1.3 with the same certificate. Each round
// measures every path of a case, every second round in the opposite order, and the figures are medians of the rounds. -bars fails if a goal is missed.
// -path measures only the paths with TEXT in their names, and compares no goals.
// Nothing else should be running.
package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Environment of a process that serves: the path, and the folder of the certificate.
const (
	pathVariable = "CINNABAR_BENCH_GRPCTLS_PATH"
	dirVariable  = "CINNABAR_BENCH_GRPCTLS_DIR"
)

const (
	smallSize  = 64
	streamSize = 1 << 10
	largeSize  = 16 << 20
)

// service is a running server of a path.
type service interface {
	addr() string
	close() error
}

// client makes the calls of a path. Its methods are called by several goroutines.
type client interface {
	// call sends size bytes in one call, and waits for an empty response.
	call(ctx context.Context, data []byte) error
	// stream sends elements of size bytes in a stream until the time is over, and waits for the server's end. It returns their number.
	stream(ctx context.Context, data []byte, d time.Duration) (int, error)
	close() error
}

// path is one way to make calls.
type path struct {
	name  string
	serve func(cfg *tls.Config) (service, error)
	dial  func(addr string, cfg *tls.Config) (client, error)
}

var paths = []path{
	{"native", serveNative, dialNative},
	{"bulk", serveNative, dialBulk},
	{"grpc", serveGRPC, dialGRPC},
	{"tls", servePlain, dialPlain},
}

// benchCase is a kind of work.
type benchCase struct {
	name     string
	size     int
	inflight int
	clients  int // with a connection each
	stream   bool
	plain    bool // also measured over plain crypto/tls, whose calls are one at a time
	large    bool // also measured as memory that the server of a native call pulls
}

var cases = []benchCase{
	{name: "unary", size: smallSize, inflight: 1, clients: 1, plain: true},
	{name: "unary of 64", size: smallSize, inflight: 64, clients: 1},
	{name: "unary of 16 clients", size: smallSize, inflight: 1, clients: 16},
	{name: "stream of 1 KiB", size: streamSize, inflight: 1, clients: 1, stream: true, plain: true},
	{name: "payload of 16 MiB", size: largeSize, inflight: 1, clients: 1, plain: true, large: true},
}

// figures are the results of one measurement, or medians of several.
type figures struct {
	rate     float64 // calls or elements in a second
	p50, p99 float64 // microseconds of a call; 0 of streams
	allocs   float64 // of this process for each call or element
}

func main() {
	if name := os.Getenv(pathVariable); name != "" {
		if err := serve(name, os.Getenv(dirVariable), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "grpctls:", err)
			os.Exit(1)
		}
		return
	}
	var s setting
	flag.IntVar(&s.rounds, "rounds", 5, "alternating rounds")
	flag.DurationVar(&s.duration, "duration", time.Second, "time of each measurement")
	flag.StringVar(&s.filter, "case", "", "only cases with this text in their names")
	flag.StringVar(&s.path, "path", "", "only paths with this text in their names; goals need all")
	flag.BoolVar(&s.bars, "bars", false, "fail if a goal is missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := s.run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "grpctls:", err)
		os.Exit(1)
	}
}

// serve runs the server of a path until in ends.
func serve(name, dir string, in io.Reader, out io.Writer) error {
	cfg, err := loadTLS(dir)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(paths, func(p path) bool { return p.name == name })
	if i < 0 {
		return fmt.Errorf("unknown path %q", name)
	}
	s, err := paths[i].serve(cfg)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, s.addr()); err != nil {
		return errors.Join(err, s.close())
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, s.close())
}

// setting is one run of the command.
type setting struct {
	rounds   int
	duration time.Duration
	filter   string
	path     string
	bars     bool

	dir     string // of the certificate
	tls     *tls.Config
	results map[string]map[string]figures // by case and path
}

func (s *setting) run(ctx context.Context, out io.Writer) (err error) {
	if s.path != "" && s.bars {
		return errors.New("-bars compares all paths; leave -path out")
	}
	if s.rounds < 1 || s.duration <= 0 {
		return fmt.Errorf("-rounds %d of -duration %v measure nothing; both must be above 0", s.rounds, s.duration)
	}
	if s.dir, err = os.MkdirTemp("", "cinnabar-grpctls-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	if err := makeCertificate(s.dir); err != nil {
		return err
	}
	if s.tls, err = loadTLS(s.dir); err != nil {
		return err
	}
	addrs := map[string]string{}
	for _, p := range paths {
		addr, end, err := s.start(ctx, p.name)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		defer end()
		addrs[p.name] = addr
	}
	s.results = map[string]map[string]figures{}
	for i := range cases {
		c := &cases[i]
		if !strings.Contains(c.name, s.filter) {
			continue
		}
		if err := s.measure(ctx, out, c, addrs); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if s.path != "" {
		return nil
	}
	return s.judge(out)
}

// start starts the server of a path, and returns its address. end ends it.
func (s *setting) start(ctx context.Context, name string) (addr string, end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), pathVariable+"="+name, dirVariable+"="+s.dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	end = func() {
		_ = in.Close() // ends the server
		_ = cmd.Wait() // its standard error has the reason of a failure
	}
	line, err := bufio.NewReader(lines).ReadString('\n')
	if err != nil {
		end()
		return "", nil, fmt.Errorf("the server has ended: %w", err)
	}
	return strings.TrimSpace(line), end, nil
}

// measure measures a case over its paths, and prints a line for each.
func (s *setting) measure(ctx context.Context, out io.Writer, c *benchCase, addrs map[string]string) error {
	order := slices.DeleteFunc(slices.Clone(paths), func(p path) bool {
		return p.name == "tls" && !c.plain || p.name == "bulk" && !c.large || !strings.Contains(p.name, s.path)
	})
	rounds := map[string][]figures{}
	for range s.rounds {
		for _, p := range order {
			f, err := s.one(ctx, c, p, addrs[p.name])
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			rounds[p.name] = append(rounds[p.name], f)
		}
		slices.Reverse(order)
	}
	s.results[c.name] = map[string]figures{}
	for _, p := range order {
		list := rounds[p.name]
		f := figures{
			median(list, func(f figures) float64 { return f.rate }), median(list, func(f figures) float64 { return f.p50 }),
			median(list, func(f figures) float64 { return f.p99 }), median(list, func(f figures) float64 { return f.allocs }),
		}
		s.results[c.name][p.name] = f
		if _, err := fmt.Fprintf(out, "%-20s %-7s %11.1f/s %9.1f MiB/s  p50 %9.1f us  p99 %9.1f us  %6.1f allocs\n",
			c.name, p.name, f.rate, f.rate*float64(c.size)/(1<<20), f.p50, f.p99, f.allocs); err != nil {
			return err
		}
	}
	return nil
}

// median returns the median of a figure.
func median(list []figures, of func(figures) float64) float64 {
	var values []float64
	for _, f := range list {
		values = append(values, of(f))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// one makes the clients of a path, warms up, and measures.
func (s *setting) one(ctx context.Context, c *benchCase, p path, addr string) (f figures, err error) {
	var clients []client
	defer func() {
		for _, cl := range clients {
			err = errors.Join(err, cl.close())
		}
	}()
	for range c.clients {
		cl, err := p.dial(addr, s.tls)
		if err != nil {
			return f, err
		}
		clients = append(clients, cl)
	}
	if _, _, err := work(ctx, c, clients, s.duration/5); err != nil {
		return f, err
	}
	runtime.GC() // each measurement begins without the garbage of the others
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	times, n, err := work(ctx, c, clients, s.duration)
	if err != nil {
		return f, err
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	f.rate, f.allocs = float64(n)/took.Seconds(), float64(after.Mallocs-before.Mallocs)/float64(n)
	if slices.Sort(times); len(times) > 0 {
		at := func(q float64) float64 { return float64(times[int(q*float64(len(times)-1))]) / 1e3 }
		f.p50, f.p99 = at(0.5), at(0.99)
	}
	return f, nil
}

// work makes calls for a time, by all clients with so many in flight each, and returns the times of the calls and their number, or the number of a
// stream's elements.
func work(ctx context.Context, c *benchCase, clients []client, d time.Duration) (times []time.Duration, n int, err error) {
	data := make([]byte, c.size)
	if c.stream {
		n, err = clients[0].stream(ctx, data, d)
		return nil, n, err
	}
	type outcome struct {
		times []time.Duration
		err   error
	}
	ends := make(chan outcome)
	begin := time.Now()
	for _, cl := range clients {
		for range c.inflight {
			go func() {
				var o outcome
				for now := time.Now(); now.Sub(begin) < d && o.err == nil; {
					o.err = cl.call(ctx, data)
					end := time.Now()
					o.times = append(o.times, end.Sub(now))
					now = end
				}
				ends <- o
			}()
		}
	}
	for range len(clients) * c.inflight {
		o := <-ends
		times, err = append(times, o.times...), errors.Join(err, o.err)
	}
	return times, len(times), err
}

// Goals.
const (
	barRate  = 4.0  // times the rate of gRPC, of calls and of a stream
	barBulk  = 3.0  // the same of 16 MiB; or
	barPlain = 0.85 // of a plain copy over TLS
	barTail  = 5.0  // p99 divided by p50, of one client
	barFair  = 5.0  // p99 of 16 clients divided by 16/2 times the p50 of one
)

// judge prints each goal with its figure. With -bars a missed one is an error.
func (s *setting) judge(out io.Writer) error {
	missed := 0
	print := func(title string, met bool, figure string) error {
		state := "met"
		if !met {
			state = "missed"
			missed++
		}
		_, err := fmt.Fprintf(out, "%-7s %s: %s\n", state, title, figure)
		return err
	}
	for _, name := range []string{"unary of 64", "unary", "stream of 1 KiB"} {
		if r := s.results[name]; r != nil {
			ratio := r["native"].rate / r["grpc"].rate
			figure := fmt.Sprintf("%.2f times the rate of gRPC, at least %g", ratio, barRate)
			if plain, ok := r["tls"]; ok {
				figure += fmt.Sprintf("; %.2f times that of plain TLS, which has %.2f times that of gRPC", r["native"].rate/plain.rate, plain.rate/r["grpc"].rate)
			}
			if err := print(name, ratio >= barRate, figure); err != nil {
				return err
			}
		}
	}
	if r := s.results["payload of 16 MiB"]; r != nil {
		for _, p := range []struct{ title, path string }{{"payload of 16 MiB in the arguments", "native"}, {"payload of 16 MiB in bulk memory", "bulk"}} {
			grpc, plain := r[p.path].rate/r["grpc"].rate, r[p.path].rate/r["tls"].rate
			if err := print(p.title, grpc >= barBulk || plain >= barPlain, fmt.Sprintf("%.2f times gRPC, at least %g, or %.2f of plain TLS, at least %g", grpc, barBulk, plain, barPlain)); err != nil {
				return err
			}
		}
	}
	if r := s.results["unary"]; r != nil {
		one := r["native"]
		if err := print("tail", one.p99/one.p50 <= barTail, fmt.Sprintf("p99 is %.2f times p50, at most %g", one.p99/one.p50, barTail)); err != nil {
			return err
		}
		if many := s.results["unary of 16 clients"]; many != nil {
			fair := many["native"].p99 / (8 * one.p50)
			if err := print("fairness", fair <= barFair, fmt.Sprintf("p99 of 16 clients is %.2f times 8 p50 of one, at most %g", fair, barFair)); err != nil {
				return err
			}
		}
	}
	if s.bars && missed > 0 {
		return fmt.Errorf("%d goals are missed", missed)
	}
	return nil
}

// makeCertificate writes a certificate for 127.0.0.1, which signs itself, and its key.
func makeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
}

// loadTLS returns the configuration of both ends, which verify each other.
func loadTLS(dir string) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert.Leaf)
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}, nil
}
