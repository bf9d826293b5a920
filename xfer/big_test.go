//go:build linux && !race

package xfer

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// defaultKills is how many processes TestKill kills unless told otherwise.
const defaultKills = 200

const (
	bigSize = 5<<30 + 1  // bytes; beyond all numbers of 32 bits
	bigRSS  = 64<<10 - 1 // KiB that either side may have resident at most

	bigLimit = 10 * time.Minute // for a process that hangs
)

// residentPeak returns the most memory that this process ever had resident, in KiB.
func residentPeak() int {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.Atoi(kib)
	return n
}

// ramp is a source of bigSize bytes, each block of which begins with its offset.
type ramp struct{}

func (ramp) ReadAt(b []byte, off int64) (int, error) {
	if off >= bigSize {
		return 0, io.EOF
	}
	if len(b) >= 8 {
		putOffset(b, off)
	}
	return len(b), nil
}

func putOffset(b []byte, off int64) {
	for i := range 8 {
		b[i] = byte(off >> (8 * i))
	}
}

// rampFile checks that it is written as a ramp, and keeps nothing.
type rampFile struct {
	discard
	next int64
}

func (f *rampFile) WriteAt(b []byte, off int64) (int, error) {
	var want [8]byte
	putOffset(want[:], off)
	if off != f.next || len(b) >= 8 && string(b[:8]) != string(want[:]) {
		return 0, fmt.Errorf("%x at offset %d, expected at %d", b[:8], off, f.next)
	}
	f.next += int64(len(b))
	return len(b), nil
}

func (f *rampFile) Commit() error {
	if f.next != bigSize {
		return fmt.Errorf("%d bytes", f.next)
	}
	return nil
}

// bigVictim is one side of the transfer of the big file. It prints its peak.
func bigVictim(args []string) error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	p, _ := strconv.Atoi(args[1])
	if args[0] == "big-sender" {
		s := Sender{Protocol: Protocol(p), Digest: NoDigest}
		_, err = s.Send(context.Background(), dev, netip.MustParseAddrPort(args[2]), Source{Name: "f", Data: ramp{}, Size: bigSize})
	} else {
		var l *verbs.Listener
		if l, err = verbs.Listen(dev, loopback); err != nil {
			return err
		}
		fmt.Println(l.Addr())
		r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return &rampFile{}, nil }}
		_, err = r.ServeOne(context.Background(), l)
	}
	fmt.Println(residentPeak())
	return err
}

// A file of more than 4 GiB crosses in each protocol, with less than 64 MiB resident on
// either side.
// parity: B14
func TestBigFile(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 10 GiB")
	}
	for _, p := range []Protocol{Basic, Fast} {
		receiver := spawn(t, "big-receiver", strconv.Itoa(int(p)))
		sender := spawn(t, "big-sender", strconv.Itoa(int(p)), receiver.Stdout.Line())
		for side, victim := range map[string]*testproc.Process{"receiver": receiver, "sender": sender} {
			victim.SetLimit(bigLimit)
			peak, err := strconv.Atoi(victim.Stdout.Line())
			if err != nil || peak > bigRSS || peak == 0 {
				t.Errorf("%v, %s: %d KiB resident, at most %d are allowed, %v", p, side, peak, bigRSS, err)
			}
			t.Logf("%v, %s: %d KiB resident", p, side, peak)
		}
		if err := sender.Wait(); err != nil {
			t.Errorf("%v, sender: %v", p, err)
		}
		if err := receiver.Wait(); err != nil {
			t.Errorf("%v, receiver: %v", p, err)
		}
	}
}
