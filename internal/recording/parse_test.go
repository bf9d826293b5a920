package recording

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMalformed reads files with one fault each.
func TestMalformed(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                     "",
		"comments only":               "# a\n",
		"message before conn":         "> 00\n",
		"neither side":                "conn\n= 00\n",
		"no blank":                    "conn\n>00\n",
		"no items":                    "conn\n>\n",
		"no bytes":                    "conn\n> =sum1\n",
		"odd digits":                  "conn\n> 000\n",
		"upper case":                  "conn\n> 0A\n",
		"no digits":                   "conn\n> 0g\n",
		"unknown address":             "conn caller=127.0.0.1:1\n",
		"malformed address":           "conn dialer=127.0.0.1\n",
		"formula without size":        "conn\n> ~1+2\n",
		"formula without offset":      "conn\n> ~1*2\n",
		"formula of no bytes":         "conn\n> ~1+2*0\n",
		"formula with a sign":         "conn\n> ~-1+2*3\n",
		"formula with a zero":         "conn\n> ~01+2*3\n",
		"formula with a large seed":   "conn\n> ~4294967296+2*3\n",
		"formula with a large offset": "conn\n> ~1+1099511627777*3\n",
		"formula that is too long":    fmt.Sprintf("conn\n> ~1+2*%d\n", maxMessage+1),
		"two that are too long":       fmt.Sprintf("conn\n> ~1+2*%d ~1+2*%d\n", maxMessage/2+1, maxMessage/2+1),
		"all too long":                "conn\n" + strings.Repeat("> ~1+2*4194304\n", maxTotal>>22+1),
		"repeat of nothing":           "conn\n> &*4\n",
		"repeat of more":              "conn\n> &0102*1\n",
		"repeat that is too long":     fmt.Sprintf("conn\n> &00*%d\n", maxMessage+1),
		"unknown field":               "conn\n> $secret1*8\n",
		"field of another size":       "conn\n> $key1*9\n",
		"field with a long name":      "conn\n> $key123456789012345*8\n",
		"another sum":                 "conn\n> !crc16\n",
		"another field compared":      "conn\n> 00 =key1\n",
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := Parse([]byte(text)); err == nil {
				t.Errorf("%+v is read", r)
			}
		})
	}
}

// TestReadFile reads a file that is too large, and one that is not there.
func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(path, bytes.Repeat([]byte("#\n"), maxFile/2+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a large file: %v", err)
	}
	if _, err := ReadFile(path + "r"); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if r, err := ReadFile("testdata/golden.txt"); err != nil || len(r.Conversations) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// FuzzParse reads anything. What it accepts, it writes in a form that it reads as the same.
func FuzzParse(f *testing.F) {
	_, b := golden(f)
	f.Add(b)
	f.Add([]byte("conn\n> !crc32c =sum1 $tag1*4 $tag1*4\n< $tag1*4\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			return
		}
		text := r.Append(nil)
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if second := again.Append(nil); !bytes.Equal(second, text) {
			t.Fatalf("written as\n%s\nand then as\n%s", text, second)
		}
		for i := range r.Conversations {
			play(&r.Conversations[i])
		}
	})
}

// play expands all messages, as a Player does with whatever it is sent.
func play(c *Conversation) {
	v, total := values{"server": {0, 0}}, 0
	for i := range c.Messages {
		m := &c.Messages[i]
		if total += m.Size(); total > 1<<20 {
			return // large formulas take time only
		}
		if m.FromDialer {
			_ = v.check(m, make([]byte, m.Size())) // whatever it is
		} else {
			_, _ = v.expand(m, nil) // whatever it is
		}
	}
}

func TestReadHex(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"sum.hex": "# of a program\n0a 0b | 0c\n0d\n", "other.hex": "ff\n", "odd.hex": "0a0\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ReadHex(dir, "sum"); err != nil || len(got) != 1 || string(got["sum"]) != "\x0a\x0b\x0c\x0d" {
		t.Errorf("%x, %v", got, err)
	}
	for prefix, want := range map[string]string{"odd": "odd length", "none": "no file"} {
		if _, err := ReadHex(dir, prefix); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("prefix %q: %v, want %q", prefix, err, want)
		}
	}
}
