package main

import (
	"testing"

	"cinnabar/cmd/cinnabar/internal/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m, newTree) }

// parity: V70 B47 H04
func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		text string // in what is printed on standard error
	}{
		{"", 0, ""},
		{"--version", 0, ""},
		{"help pingpong", 0, ""},
		{"nonsense", 2, "unknown command"},
		{"demo a b", 2, "usage: cinnabar demo"},
		{"demo no-such-file", 1, "no-such-file"},
		{"demo .", 1, ". is a directory"},
		{"devices extra", 2, "usage: cinnabar devices"},
		{"devices --frobnicate", 2, "cinnabar devices --help"},
		{"devices -d nothing", 1, "device 'nothing' wasn't found; there is"},
		{"devices -i 0", 2, "numbered from 1"},
		{"devices -i 9", 2, "has no port 9"},
		{"pingpong -n 0", 2, "iters"},
		{"pingpong -s -1", 2, "size"},
		{"pingpong -r 0", 2, "rx-depth"},
		{"pingpong -i 0", 2, "ib-port"},
		{"pingpong -p 65536", 2, "65536"},
		{"pingpong -m 1024", 2, "-m (--mtu)"},
		{"pingpong -g 0", 2, "-g (--gid-idx)"},
		{"pingpong --odp", 2, "-o (--odp)"},
		{"pingpong -d nothing", 1, "device 'nothing' wasn't found"},
		{"pingpong -i 9 127.0.0.1", 2, "has no port 9"},
		{"rping", 2, "exactly one of -s (server) and -c (client)"},
		{"rping -s -c", 2, "exactly one of"},
		{"rping -c", 2, "-a ADDR"},
		{"rping -c -P -a 127.0.0.1", 2, "-P is for servers"},
		{"rping -s -I 127.0.0.1", 2, "-I is for clients"},
		{"rping -s -S 22", 2, "valid range is 23 to 65535"},
		{"rping -s -S 65536", 2, "valid range is 23 to 65535"},
		{"rping -s -C -1", 2, "invalid count"},
		{"compare --size 0", 2, "--size"},
		{"compare --size ten", 2, "KiB, MiB"},
		{"compare --chunk 1GiB", 2, "--chunk"},
		{"demo-peer", 1, "started by others"},
		{"send", 2, "usage: cinnabar send FILE... HOST[:PORT]"},
		{"send main.go", 2, "usage: cinnabar send"},
		{"send no-such-file 127.0.0.1", 1, "no-such-file"},
		{"send . 127.0.0.1", 1, ". is a directory, and send takes files"},
		{"send main.go root.go :80", 2, "the last argument is the receiver"},
		{"send main.go 127.0.0.1:port:", 2, "[IPV6]:PORT"},
		{"send main.go 127.0.0.1:no-such-port", 1, "the last argument is the receiver"},
		{"send main.go 127.0.0.1:1", 1, "see whether cinnabar recv runs there"},
		{"send main.go [::1]:1", 1, "see whether cinnabar recv runs there"},
		{"send main.go 127.0.0.1 --protocol quick", 2, "auto, fast, basic"},
		{"send main.go 127.0.0.1 --digest md5", 2, "sha256, blake3, none"},
		{"send main.go 127.0.0.1 --chunk 4x", 2, "KiB, MiB"},
		{"send main.go 127.0.0.1 --chunk 1k", 2, "4.0 KiB to 1.0 GiB"},
		{"send main.go 127.0.0.1 --chunk 2g", 2, "4.0 KiB to 1.0 GiB"},
		{"send main.go 127.0.0.1 --buffers 1025", 2, "1 to 1024"},
		{"send main.go 127.0.0.1 --timeout 0s", 2, "--timeout"},
		{"recv extra", 2, "usage: cinnabar recv"},
		{"recv --timeout -1s", 2, "--timeout"},
		{"recv --listen a:b:c", 2, "--listen"},
		{"recv --listen 192.0.2.1:0", 1, "192.0.2.1"},
		{"recv --listen 127.0.0.1:0 --dir no-such-directory", 1, "no-such-directory"},
		{"recv --listen 127.0.0.1:0 --dir main.go", 1, "--dir"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			o := clitest.WantExit(t, tt.args, tt.code, tt.text)
			if tt.code == 0 && o.Out.Len() == 0 {
				t.Error("nothing on standard output")
			}
			if tt.code != 0 && o.Out.Len() != 0 {
				t.Errorf("a failure printed %q on standard output", &o.Out)
			}
		})
	}
}
