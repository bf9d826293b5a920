//go:build linux

package interop

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ringTransfer is a transfer of which the ring traffic between a client and a server in C is recorded in testdata of
// internal/na/sm. The server makes it while the client is stopped.
type ringTransfer struct {
	kind            string // pull or push
	total, segments int
	polls           bool // the programs do not wait in the kernel
	eager           bool // the request contains the pulled bytes
}

func (r ringTransfer) file() string {
	name := fmt.Sprintf("%s_%d_%d", r.kind, r.total, r.segments)
	if r.eager {
		name += "_eager"
	}
	if r.polls {
		name += "_polling"
	}
	return filepath.Join("..", "..", "internal", "na", "sm", "testdata", name+".txt")
}

// ringTransfers returns all recorded transfers.
func ringTransfers() (all []ringTransfer) {
	for _, kind := range []string{"pull", "push"} {
		for _, s := range []ringTransfer{
			{total: 1, segments: 1}, {total: 4096, segments: 1}, {total: 4096, segments: 8}, {total: 65536, segments: 1},
			{total: 65536, segments: 8}, {total: 1 << 20, segments: 1}, {total: 1 << 20, segments: 8},
			{total: 65536, segments: 8, polls: true},
		} {
			s.kind = kind
			all = append(all, s)
		}
	}
	return append(all, ringTransfer{kind: "pull", total: 1, segments: 1, eager: true}, ringTransfer{kind: "pull", total: 256, segments: 8, eager: true})
}

// Offsets in a server's region: its parts, and the positions of the client and the server in the rings of the first pair.
const (
	ringBuffers  = 0x108
	ringAsked    = 0x41500
	ringAnswered = 0x41780
	ringTaken    = 0x417c0
	ringPairs    = 0x92080
	ringSlots    = 0x80
)

// TestRecordSharedMemory lets a server in C transfer memory of a client in C over na+sm, and stops each process while the other
// runs. The traffic must equal the recording except for masked bytes. With -record the test writes the recordings anew.
// parity(peer): H126
func TestRecordSharedMemory(t *testing.T) {
	hgPeer.executable(t)
	keepFiles(t)
	for _, r := range ringTransfers() {
		over(t, strings.TrimSuffix(filepath.Base(r.file()), ".txt"), sharedMemory, r.polls, func(t *testing.T) {
			got := recordRing(t, r)
			if *recordFlag {
				must(t, os.WriteFile(r.file(), []byte(got), 0o644))
				return
			}
			want, err := os.ReadFile(r.file())
			must(t, err)
			compareRings(t, string(want), got)
		})
	}
}

// ring is a region of a server in C under observation.
type ring struct {
	t      *testing.T
	path   string
	server *peer
	last   []byte
	text   strings.Builder
}

func (g *ring) read() []byte {
	g.t.Helper()
	b, err := os.ReadFile(g.path)
	must(g.t, err)
	return b
}

// until waits until the word at an offset is v.
func (g *ring) until(off int, v uint64) {
	g.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	ctx := limited(g.t, patience)
	for binary.LittleEndian.Uint64(g.read()[off:]) != v {
		select {
		case <-tick.C:
		case <-ctx.Done():
			g.t.Fatalf("the word at %#x is %#x, want %#x", off, binary.LittleEndian.Uint64(g.read()[off:]), v)
		}
	}
}

// phase records the words of the region that have changed.
func (g *ring) phase(name string) {
	g.t.Helper()
	fmt.Fprintln(&g.text, name)
	b := g.read()
	for off := ringBuffers; off < len(b); off += 8 {
		if !bytes.Equal(b[off:off+8], g.last[off:off+8]) {
			fmt.Fprintf(&g.text, "%05x %x\n", off, b[off:off+8])
		}
	}
	g.last = b
}

// datagram records the datagram that waits in the stopped server's socket, and leaves it there.
func (g *ring) datagram() {
	g.t.Helper()
	if busy {
		return
	}
	pid, err := unix.PidfdOpen(g.server.Pid(), 0)
	must(g.t, err)
	defer unix.Close(pid)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.server.Pid()))
	must(g.t, err)
	for _, e := range entries {
		var n int
		_, _ = fmt.Sscan(e.Name(), &n) // it is a number
		fd, err := unix.PidfdGetfd(pid, n, 0)
		must(g.t, err)
		b := make([]byte, 16)
		name, err := unix.Getsockname(fd)
		if at, ok := name.(*unix.SockaddrUnix); err == nil && ok && strings.HasSuffix(at.Name, "/sock") {
			got, _, _, _, err := unix.Recvmsg(fd, b, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			must(g.t, err, unix.Close(fd))
			fmt.Fprintf(&g.text, "datagram %x\n", b[:got])
			return
		}
		must(g.t, unix.Close(fd))
	}
	g.t.Fatal("the server has no socket")
}

// recordRing runs one transfer and returns its recording.
func recordRing(t *testing.T, r ringTransfer) string {
	t.Helper()
	server := startPeer(t, hgPeer)
	options := []string{"--no-eager"}
	if r.eager {
		options = nil
	}
	client := startPeer(t, hgPeer, options...)
	uri := strings.TrimPrefix(server.addr, "na+sm://")
	g := &ring{t: t, path: "/dev/shm/na_sm-" + uri, server: server}
	g.last = g.read()
	client.aim(server.addr)
	server.Suspend()
	command := fmt.Sprintf("%s total=%d segments=%d", r.kind, r.total, r.segments)
	client.start(command)
	const one = 1 | 1<<32 // head and tail
	g.until(ringAsked, one)
	client.Suspend()
	g.datagram()
	g.phase("asked")
	request := g.last[ringBuffers:][:binary.LittleEndian.Uint16(g.last[ringAsked+ringSlots+4:])]
	server.Resume()
	g.until(ringAnswered, one)
	server.Suspend()
	g.phase("answered")
	client.Resume()
	if got := client.result(command); !got.has(fmt.Sprintf("ret=0 moved=0 count=%d ok=1", r.total)) {
		t.Fatalf("the client says %q", got)
	}
	g.until(ringTaken, one)
	g.phase("taken")
	client.stop()
	g.datagram()
	server.Resume()
	g.until(ringPairs, ^uint64(1))
	if busy {
		g.until(ringTaken, one)
	}
	server.Suspend()
	g.phase("left")
	server.Resume()
	server.stop()
	return r.head(server, client, request) + g.text.String()
}

// head returns the lines in front of a recording, with a mask for each part of the request that differs from run to run.
func (r ringTransfer) head(server, client *peer, request []byte) string {
	how := "wait in the kernel"
	masks := []string{"datagram 0 0-4", "datagram 1 0-4", "91080 0-4"}
	if r.polls {
		how = "poll (NA_NO_BLOCK)"
		masks = []string{"91080 0-4", "91088 0-4"}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# A client of C has a server of C (Mercury 2.4.1 without checksums, glibc, x86-64) %s %d bytes in %d segments, both of which %s.\n", r.kind, r.total, r.segments, how)
	fmt.Fprintf(&b, "# The phases are those of sum_waiting.txt. The server's program is stopped but in \"answered\" and \"left\", the client's in \"answered\".\n")
	fmt.Fprintf(&b, "server %s\nclient %s\n", strings.TrimPrefix(server.addr, "na+sm://"), strings.TrimPrefix(client.addr, "na+sm://"))
	fmt.Fprintf(&b, "# A replay puts its own process and endpoint in the place of the client's. These bytes are masked:\n")
	for _, m := range masks {
		fmt.Fprintf(&b, "# mask %s\n", m)
	}
	fmt.Fprintf(&b, "# Bytes of the request that hold a segment's address, from one of its bytes on: in the list that servers do not read (list), and in\n")
	fmt.Fprintf(&b, "# the memory handle, where a replay puts the addresses of its own memory (segment).\n")
	for _, m := range addressMasks(request, r) {
		fmt.Fprintf(&b, "# mask %s\n", m)
	}
	return b.String()
}

// addressMasks finds the addresses in a request: the segments are nearly equal parts of memory, and each address stands before its
// segment's length. All of them stand in the descriptor's list, and those of the memory handle behind it.
func addressMasks(request []byte, r ringTransfer) (masks []string) {
	each := uint64(r.total / r.segments)
	last := uint64(r.total) - each*uint64(r.segments-1)
	base := findAddress(request, each, 0)
	for _, place := range []string{"list", "segment"} {
		for i := range r.segments {
			n := each
			if i == r.segments-1 {
				n = last
			}
			pair := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, base+uint64(i)*each), n)
			at := bytes.Index(request, pair)
			if place == "segment" {
				at = bytes.LastIndex(request, pair)
			}
			for b := 0; b < 8; {
				word, from := (at+b)&^7, (at+b)&7
				to := min(7, from+7-b)
				masks = append(masks, fmt.Sprintf("%05x %d-%d %s %d %d", ringBuffers+word, from, to, place, i, b))
				b += to - from + 1
			}
		}
	}
	return masks
}

// findAddress returns the first value that looks like an address of a program's heap and stands in front of a length.
func findAddress(request []byte, n uint64, from int) uint64 {
	for at := from; at+16 <= len(request); at++ {
		v := binary.LittleEndian.Uint64(request[at:])
		if top := v >> 40; (top == 0x55 || top == 0x56 || top == 0x7e || top == 0x7f) && binary.LittleEndian.Uint64(request[at+8:]) == n {
			return v
		}
	}
	return 0
}

// compareRings compares two recordings except for the bytes that the first one masks.
func compareRings(t *testing.T, want, got string) {
	t.Helper()
	free := map[string][2]int{}
	for l := range strings.Lines(want) {
		if f := strings.Fields(l); len(f) > 3 && f[0] == "#" && f[1] == "mask" {
			key, span := f[2], f[3]
			if key == "datagram" {
				key, span = "datagram", f[4]
			}
			var first, last int
			_, err := fmt.Sscanf(span, "%d-%d", &first, &last)
			must(t, err)
			free[key] = [2]int{first, last}
		}
	}
	plain := func(s string) (lines []string) {
		for l := range strings.Lines(s) {
			f := strings.Fields(l)
			if f[0] == "#" || f[0] == "server" || f[0] == "client" {
				continue
			}
			if span, ok := free[f[0]]; ok && len(f) == 2 {
				b, err := hex.DecodeString(f[1])
				must(t, err)
				clear(b[span[0] : span[1]+1])
				l = fmt.Sprintf("%s %x\n", f[0], b)
			}
			lines = append(lines, l)
		}
		return lines
	}
	if w, g := plain(want), plain(got); !slices.Equal(w, g) {
		t.Errorf("recorded:\n%s\nnow:\n%s", strings.Join(w, ""), strings.Join(g, ""))
	}
}
