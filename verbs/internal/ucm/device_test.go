//go:build linux

package ucm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNameByGUID(t *testing.T) {
	dir := t.TempDir()
	for name, guid := range map[string]string{"b0": "14de:ffff:feec:41f0\n", "c0": "14de:ffff:feec:41f0\n", "a0": "0000:0000:0000:0001\n"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "node_guid"), []byte(guid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "0"), 0o755); err != nil { // a device that is going away
		t.Fatal(err)
	}
	for guid, want := range map[[8]byte]string{
		{0x14, 0xde, 0xff, 0xff, 0xfe, 0xec, 0x41, 0xf0}: "b0",
		{7: 1}: "a0", {7: 2}: "",
	} {
		if got := nameByGUID(dir, guid); got != want {
			t.Errorf("GUID %x: %q, want %q", guid, got, want)
		}
	}
	if got := nameByGUID(filepath.Join(dir, "none"), [8]byte{7: 1}); got != "" {
		t.Errorf("without devices: %q", got)
	}
}

func TestNetlinkMessages(t *testing.T) {
	b := netlinkRequest(nldevGetChardev, attrChardevType, []byte("rdma_cm\x00"))
	want := golden(t, 28, part{0, "1c000000 0f14 0100 0000000000000000 0c00 4500 72646d615f636d00"})
	if string(b) != string(want) {
		t.Errorf("request %x, want %x", b, want)
	}
	b = netlinkRequest(nldevGet, attrDevName, []byte("rxe10\x00")) // an answer looks the same
	attrs, err := netlinkAnswer(b, nldevGet)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := attrString(attrs, attrDevName); name != "rxe10" || err != nil {
		t.Errorf("name %q, %v", name, err)
	}
	if _, err := attrString(attrs, attrDevIndex); !errors.Is(err, unix.ENOMSG) {
		t.Errorf("an attribute that is not there: %v", err)
	}
	failure := golden(t, 36, part{0, "24000000 0200 0000"}, part{16, "edffffff"})
	if _, err := netlinkAnswer(failure, nldevGet); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a refusal: %v", err)
	}
}
