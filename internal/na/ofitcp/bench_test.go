package ofitcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/na"
)

// envServe has the test binary be an echoing server, whose address it prints first; it ends with its standard input.
const envServe = "OFITCP_TEST_SERVE"

func serveIfAsked() {

	host := os.Getenv(envServe)
	if host == "" {
		return
	}

	h := new(echo)
	started := make(chan struct{})
	e, err := Open(context.Background(), Config{Address: "ofi+tcp://" + host + ":0", Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		return h.Request(m)
	})})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	h.e = e
	close(started)
	mem, err := e.Register(make([]byte, 64<<20), na.ReadWrite)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("%s %x\n", e.Addr(), mem.AppendHandle(nil))
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// startProcess starts such a server and returns its address and the handle of 64 MiB of its memory.
func startProcess(t testing.TB) (addr string, handle []byte) {
	t.Helper()
	addr, handle, _ = startKillable(t)
	return addr, handle
}

// startKillable also returns what kills the process.
func startKillable(t testing.TB) (addr string, handle []byte, kill func()) {
	t.Helper()
	return serveWith(t, "127.0.0.1", exec.Command(os.Args[0], "-test.run=^$"))
}

// startIn starts one on another host.
func startIn(t testing.TB, n *network) (addr string, handle []byte) {
	t.Helper()
	addr, handle, _ = serveWith(t, n.far, exec.Command("ip", "netns", "exec", n.name, os.Args[0], "-test.run=^$"))
	return addr, handle
}

// serveWith runs cmd, which is this program, as a server on an address of its host.
func serveWith(t testing.TB, host string, cmd *exec.Cmd) (addr string, handle []byte, kill func()) {
	t.Helper()
	cmd.Env = append(os.Environ(), envServe+"="+host)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if _, err := fmt.Fscanf(out, "%s %x\n", &addr, &handle); err != nil {
		t.Fatal(err)
	}
	return addr, handle, func() { _ = cmd.Process.Kill() } // it may have ended
}

func BenchmarkPingPong(b *testing.B) {
	run := func(b *testing.B, cl *Endpoint, addr string) {
		to, err := cl.Lookup(addr)
		if err != nil {
			b.Fatal(err)
		}
		c := newClient(cl, to, 0)
		data := bytes.Repeat([]byte{7}, 64)
		c.must(b, data)
		b.ReportAllocs()
		took := make([]time.Duration, 0, 1<<16)
		for b.Loop() {
			begin := time.Now()
			if _, err := c.call(b, data); err != nil {
				b.Fatal(err)
			}
			if len(took) < cap(took) {
				took = append(took, time.Since(begin))
			}
		}
		// On a machine that others use as well, these say more than the mean.
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/100].Nanoseconds()), "p1-ns")
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	}
	b.Run("one process", func(b *testing.B) {
		run(b, openEndpoint(b, Config{}), openEcho(b, Config{}).Addr().String())
	})
	b.Run("two processes", func(b *testing.B) {
		addr, _ := startProcess(b)
		run(b, openEndpoint(b, Config{}), addr)
	})
}

// BenchmarkInFlight has 64 calls under way at a time.
func BenchmarkInFlight(b *testing.B) {
	addr, _ := startProcess(b)
	e := openEndpoint(b, Config{})
	to, err := e.Lookup(addr)
	if err != nil {
		b.Fatal(err)
	}
	data := bytes.Repeat([]byte{7}, 64)
	var next atomic.Uint32
	newClient(e, to, 1<<31).must(b, data)
	b.ReportAllocs()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		c := newClient(e, to, next.Add(1)<<20)
		for pb.Next() {
			if _, err := c.call(b, data); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func benchTransfer(b *testing.B, put bool) {
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			addr, handle := startProcess(b)
			e := openEndpoint(b, Config{})
			to, err := e.Lookup(addr)
			if err != nil {
				b.Fatal(err)
			}
			r, err := e.ParseHandle(handle)
			if err != nil {
				b.Fatal(err)
			}
			c := newCall()
			frags := []na.Fragment{{Remote: r, Local: make([]byte, size)}}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if put {
					e.Put(&c.op, to, frags)
				} else {
					e.Get(&c.op, to, frags)
				}
				if err := c.wait(b, e, to); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) { benchTransfer(b, false) }
func BenchmarkPut(b *testing.B) { benchTransfer(b, true) }

// BenchmarkRawTCP is what the transfers are measured against: a process that sends the asked number of bytes over a
// plain connection, in writes of 1 MiB.
func BenchmarkRawTCP(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			c, err := net.Dial("tcp", startRaw(b))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			buf := make([]byte, size)
			ask := []byte{byte(size >> 16), byte(size >> 24)}
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := c.Write(ask); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

const envRaw = "OFITCP_TEST_RAW"

func serveRawIfAsked() {
	if os.Getenv(envRaw) == "" {
		return
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(ln.Addr())
	c, err := ln.Accept()
	if err != nil {
		os.Exit(1)
	}
	buf := make([]byte, 1<<20)
	ask := make([]byte, 2)
	for {
		if _, err := io.ReadFull(c, ask); err != nil {
			os.Exit(0)
		}
		for n := int(ask[0])<<16 | int(ask[1])<<24; n > 0; {
			k, err := c.Write(buf[:min(n, len(buf))])
			if err != nil {
				os.Exit(0)
			}
			n -= k
		}
	}
}

func startRaw(b *testing.B) string {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), envRaw+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Wait() })
	var addr string
	if _, err := fmt.Fscanln(out, &addr); err != nil {
		b.Fatal(err)
	}
	return addr
}
