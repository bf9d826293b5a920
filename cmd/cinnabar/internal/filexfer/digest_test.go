package filexfer

import (
	"encoding/hex"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// The function that the commands call blake3 is BLAKE3 with 256 bits: its sum of no bytes, and that of the first test vector of
// its authors with more than one block, which counts bytes modulo 251.
// parity: B51
func TestBLAKE3(t *testing.T) {
	input := make([]byte, 1025)
	for i := range input {
		input[i] = byte(i % 251)
	}
	for want, data := range map[string][]byte{
		"af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262": nil,
		"d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444": input,
	} {
		h := hashes()[digestBLAKE3]()
		h.Write(data)
		if got := hex.EncodeToString(h.Sum(nil)); got != want {
			t.Errorf("%d bytes: got %s, want %s", len(data), got, want)
		}
	}
}

// A receiver that takes one digest refuses senders with another, and the errors of both name the digests.
// parity: B51
func TestRecvTakesOneDigest(t *testing.T) {
	path := randomFiles(t, 1000)[0]
	server := startRecv(t, "127.0.0.1:0", "--digest", "blake3")
	for want, args := range map[string][]string{
		"takes digest blake3 only, and the sender asks for sha256":                             nil,
		"takes digest blake3 only, and the sender asks for none":                               {"--digest", "none"},
		"takes digest blake3 only, and the basic protocol, which the sender offers, has none;": {"--protocol", "basic"},
	} {
		code, client := clitest.RunProcess(t, append(append([]string{"send"}, args...), path, server.addr)...)
		if code != 1 || !strings.Contains(client.Stderr.String(), want) || !strings.Contains(client.Stderr.String(), "--digest") {
			t.Errorf("exit code %d: %s", code, client.Stderr)
		}
	}
	code, client := clitest.RunProcess(t, "send", "--digest", "blake3", path, server.addr)
	if code != 0 || !strings.Contains(client.Stdout.String(), ", blake3 ") {
		t.Errorf("exit code %d: %s%s", code, client.Stdout, client.Stderr)
	}
	server.sameFile(t, path)
	server.interrupt(t)
}

// A digest that does not exist, or that the protocol cannot have, is an error of the command line.
func TestDigestOptions(t *testing.T) {
	path := randomFiles(t, 10)[0]
	for want, args := range map[string][]string{
		`invalid --digest "md5": one of sha256, blake3, none`:               {"send", "--digest", "md5", path, "127.0.0.1"},
		`invalid --digest "md5": one of any, sha256, blake3, none`:          {"recv", "--digest", "md5"},
		"--digest blake3 is for the fast protocol; --protocol basic has no": {"send", "--digest", "blake3", "--protocol", "basic", path, "127.0.0.1"},
	} {
		code, p := clitest.RunProcess(t, args...)
		if code != cli.ExitUsage || !strings.Contains(p.Stderr.String(), want) {
			t.Errorf("%q: exit code %d: %s", args, code, p.Stderr)
		}
	}
}
