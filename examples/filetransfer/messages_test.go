package filetransfer

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"cinnabar/verbs"
)

// golden reads the messages of the C program: lines of "kind padding hex", and comments with #.
func golden(t testing.TB) (lines [][]string) {
	t.Helper()
	text, err := os.ReadFile("testdata/messages.hex")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.Fields(line))
		}
	}
	return lines
}

// goldenMR is the region that the golden messages name.
var goldenMR = verbs.RemoteAddr{Addr: 0x7f9402d01000, RKey: 0x29f}

// parity: B04
func TestGoldenMessages(t *testing.T) {
	kinds := map[string]MessageID{"MR": MsgMR, "READY": MsgReady, "DONE": MsgDone}
	for _, l := range golden(t) {
		want := Message{ID: kinds[l[0]], Buffer: goldenMR}
		b, err := hex.DecodeString(strings.Join(l[2:], ""))
		if err != nil {
			t.Fatal(err)
		}
		got, ok := ParseMessage(b)
		if !ok || got != want {
			t.Errorf("%s: got %+v, %t, want %+v", l[0], got, ok, want)
		}
		if l[1] == "clean" && string(AppendMessage(nil, want)) != string(b) {
			t.Errorf("%s: appended % x, want % x", l[0], AppendMessage(nil, want), b)
		}
		for n := range b {
			if _, ok := ParseMessage(b[:n]); ok {
				t.Errorf("%s: %d bytes taken for a message", l[0], n)
			}
		}
		if _, ok := ParseMessage(append(b, 0)); ok {
			t.Errorf("%s: 25 bytes taken for a message", l[0])
		}
	}
}

func TestUnknownMessages(t *testing.T) {
	for _, id := range []MessageID{0, 4, 1 << 24, 1<<32 - 1} {
		if m, ok := ParseMessage(AppendMessage(nil, Message{ID: id})); ok {
			t.Errorf("took %d for a message: %+v", id, m)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, l := range golden(f) {
		b, _ := hex.DecodeString(strings.Join(l[2:], ""))
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := ParseMessage(b)
		if !ok {
			return
		}
		if again, ok := ParseMessage(AppendMessage(nil, m)); !ok || again != m {
			t.Errorf("%+v became %+v", m, again)
		}
	})
}

func TestHostPort(t *testing.T) {
	for server, want := range map[string]string{
		"ib-host-1": "ib-host-1:12345", "10.0.0.1": "10.0.0.1:12345", "10.0.0.1:7": "10.0.0.1:7",
		"::1": "[::1]:12345", "[::1]:7": "[::1]:7", "": ":12345",
	} {
		if got := HostPort(server); got != want {
			t.Errorf("HostPort(%q): got %q, want %q", server, got, want)
		}
	}
}
