package recording

import (
	"bytes"
	"encoding/hex"
	"os"
	"testing"
)

// goldenDialer are the messages of the dialing side of testdata/golden.txt in one run, and goldenListener those of the other.
var (
	goldenDialer = []string{
		"03000008636e6272" + "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" + "01000000000000000000" + "4e21" + "c0c1c2c3",
		"4d6c8baac9e8" + "1837567594b3" + "0102010201" + "0001020304050607" + "e3069283",
		"00" + "6b76a76d" + "1011121314151617" + "616263",
		"313233343536373839", // the check value of CRC-32C
	}
	goldenListener = []string{
		"0301000800" + "4e21" + "00000353",
		"38577695b4d3" + "0827466584a3c2e1001f" + "0001020304050607" + "0000",
	}
)

func golden(t testing.TB) (*Recording, []byte) {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return r, b
}

// TestGolden reads the recording that has every kind of item, and writes it again.
func TestGolden(t *testing.T) {
	r, b := golden(t)
	if got := r.Append(nil); !bytes.Equal(got, b) {
		t.Errorf("got\n%s\nwant\n%s", got, b)
	}
	k := NewChecker(&r.Conversations[0], true)
	for i, text := range goldenDialer {
		if err := k.Next(unhex(t, text)); err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if k.Left() != 0 {
		t.Errorf("%d messages are left", k.Left())
	}
	v := k.values
	next := 0
	for i, m := range r.Conversations[0].Messages {
		if m.FromDialer || m.End {
			continue
		}
		if got, err := v.expand(&m, nil); err != nil || !bytes.Equal(got, unhex(t, goldenListener[next])) {
			t.Errorf("message %d is %x, %v; want %s", i, got, err, goldenListener[next])
		}
		next++
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMutations changes each byte of the dialing side's messages, one at a time. All but the first values of fields are seen.
func TestMutations(t *testing.T) {
	r, _ := golden(t)
	k := NewChecker(&r.Conversations[0], true)
	freed := 0
	for i, text := range goldenDialer {
		b := unhex(t, text)
		free := k.Free()
		for at := range b {
			b[at] ^= 0x40
			if k.Try(b) == nil && !free[at] {
				t.Errorf("message %d is accepted with another byte %d", i, at)
			}
			b[at] ^= 0x40
			if free[at] {
				freed++
			}
		}
		for _, wrong := range [][]byte{b[:len(b)-1], append(b[:len(b):len(b)], 0)} {
			if k.Try(wrong) == nil {
				t.Errorf("message %d is accepted with %d bytes in place of %d", i, len(wrong), len(b))
			}
		}
		if err := k.Next(b); err != nil {
			t.Fatal(err)
		}
	}
	if want := 16 + 2 + 4 + 8 + 4 + 8; freed != want {
		t.Errorf("%d bytes may differ, want %d", freed, want)
	}
	if k.Next(nil) == nil {
		t.Error("a message is accepted after the last one")
	}
}

// TestSameKeys has two fields of one kind with the same value.
func TestSameKeys(t *testing.T) {
	r, err := Parse([]byte("conn\n> $key1*8 $key2*8\n"))
	if err != nil {
		t.Fatal(err)
	}
	if NewChecker(&r.Conversations[0], true).Next(make([]byte, 16)) == nil {
		t.Error("two memories have the same key")
	}
}
