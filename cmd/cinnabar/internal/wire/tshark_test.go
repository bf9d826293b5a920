package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cinnabar/internal/capture"
	"cinnabar/internal/recording"
)

const fileHead = "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x01\x00\x00\x00"

// merged appends the packets of a capture to one of Ethernet. It changes the second byte of their IP addresses to n, so that the connections of
// captures are different.
func merged(t *testing.T, to, from []byte, n byte) []byte {
	t.Helper()
	raw := from[20] == 101
	for b := from[24:]; len(b) > 0; {
		size := int(binary.LittleEndian.Uint32(b[8:]))
		data := bytes.Clone(b[16 : 16+size])
		if raw {
			data = append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0}, data...)
		}
		if data[12] == 8 && data[13] == 0 {
			data[14+13], data[14+17] = n, n
		}
		to = append(to, b[:8]...)
		to = binary.LittleEndian.AppendUint32(to, uint32(len(data)))
		to = binary.LittleEndian.AppendUint32(to, uint32(len(data)))
		to = append(to, data...)
		b = b[16+size:]
	}
	return to
}

// everything returns one capture with all recorded ones, and with the conversations that C programs have had over ofi+tcp.
func everything(t *testing.T) []byte {
	t.Helper()
	all := []byte(fileHead)
	n := byte(1)
	files, err := filepath.Glob(captures + "/*.pcap")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = merged(t, all, b, n)
		n++
	}
	for _, pattern := range []string{"servers/*.txt", "wire/*.hex"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "test", "interop", "testdata", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > 30<<10 {
				continue // more of the same messages
			}
			r, err := recording.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range r.Conversations {
				if pieces := expand(&r.Conversations[i]); pieces[0].b[0] == 3 && total(pieces) < 200<<10 && n < 250 {
					all = merged(t, all, file(pieces, nil), n)
					n++
				}
			}
		}
	}
	return all
}

func total(pieces []piece) (n int) {
	for _, p := range pieces {
		n += len(p.b)
	}
	return n
}

// onlyHere are the parts of lines that the dissector does not have, see docs/wire.md.
var onlyHere = regexp.MustCompile(` text=("(\\.|[^"\\])*"|\S+)`)

// TestTsharkHostile changes bytes of messages of package native and of file transfers. The dissector reports no error of Lua, which it would for a length
// that reaches beyond its message.
func TestTsharkHostile(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("no tshark here: the Debian package tshark has it")
	}
	all, r := []byte(fileHead), rand.New(rand.NewPCG(3, 7))
	for _, name := range []string{"native-calls.pcap", "software-file-transfer.pcap"} {
		recorded, err := os.ReadFile(filepath.Join(captures, name))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			b := bytes.Clone(recorded)
			for at := len(fileHead); at < len(b); {
				end := at + 16 + int(binary.LittleEndian.Uint32(b[at+8:]))
				if first := at + 16 + 14 + 20 + 32; first < end && r.IntN(2) == 0 { // behind the headers of Ethernet, IP and TCP
					b[first+r.IntN(end-first)] = []byte{0, 1, 8, 127, 128, 255}[r.IntN(6)]
				}
				at = end
			}
			all = merged(t, all, b, byte(len(all)%250))
		}
	}
	path := filepath.Join(t.TempDir(), "hostile.pcap")
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs(filepath.Join("..", "..", "..", "..", "contrib", "wireshark", "cinnabar.lua"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tshark, "-n", "-X", "lua_script:"+script, "-r", path, "-o", "tcp.try_heuristic_first:TRUE", "-V").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if i := bytes.Index(bytes.ToLower(out), []byte("lua error")); i >= 0 {
		t.Errorf("%s", out[i:min(i+500, len(out))])
	}
	if n := bytes.Count(out, []byte("native=")); n < 100 {
		t.Errorf("%d envelopes were decoded", n)
	}
}

// Every packet of the recorded captures decodes the same in the command and in tshark with the dissector.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("no tshark here: the Debian package tshark has it")
	}
	all := everything(t)
	path := filepath.Join(t.TempDir(), "all.pcap")
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[int][]string{}
	d := newDecoder(func(m *message) {
		if m.operation == "unfinished" {
			return
		}
		if m.operation == "probe" {
			m.operation = "request"
		}
		want[m.packet] = append(want[m.packet], m.protocol+" "+onlyHere.ReplaceAllString(m.text(), ""))
	})
	for _, name := range knownNames {
		d.name(name)
	}
	file, err := capture.NewReader(bytes.NewReader(all))
	if err != nil {
		t.Fatal(err)
	}
	var printErr error
	if err := readAll(t.Context(), file, d, &printErr); err != nil {
		t.Fatal(err)
	}
	d.close()
	script, err := filepath.Abs(filepath.Join("..", "..", "..", "..", "contrib", "wireshark", "cinnabar.lua"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tshark, "-n", "-X", "lua_script:"+script, "-r", path, "-Y", "cinnabar or cinnabar_roce", "-o", "tcp.try_heuristic_first:TRUE",
		"-T", "fields", "-e", "frame.number", "-e", "cinnabar.protocol", "-e", "cinnabar.message", "-E", "occurrence=a", "-E", "aggregator=|")
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &problems)
	}
	got := map[int][]string{}
	for text := range strings.Lines(string(out)) {
		part := strings.Split(strings.TrimSuffix(text, "\n"), "\t")
		n, err := strconv.Atoi(part[0])
		if err != nil || len(part) != 3 {
			t.Fatalf("tshark prints %q: %s", text, &problems)
		}
		if part[1] == "" {
			continue
		}
		protocols, messages := strings.Split(part[1], "|"), strings.Split(part[2], "|")
		for i, p := range protocols {
			got[n] = append(got[n], p+" "+messages[i])
		}
	}
	count := 0
	for n, list := range want {
		count += len(list)
		if !slices.Equal(got[n], list) {
			t.Errorf("packet %d: tshark has\n%s\nwant\n%s", n, strings.Join(got[n], "\n"), strings.Join(list, "\n"))
		}
	}
	for n, list := range got {
		if want[n] == nil {
			t.Errorf("packet %d: only tshark has %q", n, list)
		}
	}
	if count < 500 {
		t.Errorf("%d messages", count)
	}
	t.Logf("%d messages in %d bytes", count, len(all))
}
