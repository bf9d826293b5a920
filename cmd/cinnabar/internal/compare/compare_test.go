package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
)

func TestJobCoversItsMemory(t *testing.T) {
	for _, j := range []job{
		{1, 1}, {10, 4}, {8, 4}, {3, 3}, {maxMemory, cli.MiB}, {maxMemory + 1, cli.MiB},
		{3*maxMemory + 12345, 7 * cli.MiB}, {100 * cli.MiB, maxChunk},
	} {
		if err := j.check(); err != nil {
			t.Errorf("%+v: %v", j, err)
			continue
		}
		total, next, lap := int64(0), 0, 0
		for n := range j.count() {
			off, size := j.piece(n)
			if size < 1 || off < 0 || off+size > j.memory() {
				t.Fatalf("%+v: piece %d is [%d:+%d] of %d bytes", j, n, off, size, j.memory())
			}
			if lap == 0 && off == next {
				next = off + size
			} else {
				lap++
			}
			total += int64(size)
		}
		if total != j.Size || next != j.memory() || j.memory() > maxMemory {
			t.Errorf("%+v: pieces make %d bytes, the first lap covers %d of %d", j, total, next, j.memory())
		}
	}
	for _, j := range []job{{}, {1, 2}, {1, 0}, {-1, -1}, {1 << 40, maxChunk + 1}} {
		if err := j.check(); err == nil {
			t.Errorf("%+v was accepted", j)
		}
	}
}

// Sender and receiver count credits alike, whatever the number of pieces.
func TestCreditsBalance(t *testing.T) {
	for pieces := int64(1); pieces < 200; pieces++ {
		sent := int64(0)
		for n := int64(1); n <= pieces; n++ { // as takeSend does
			if n%creditStep == 0 || n == pieces {
				sent++
			}
		}
		if sent != credits(pieces) {
			t.Errorf("%d pieces: the receiver sends %d credits, credits says %d", pieces, sent, credits(pieces))
		}
		used, credit := int64(0), int64(window)
		for range pieces { // as moveSend does
			if credit--; credit < 0 {
				credit += creditStep
				used++
			}
		}
		if left := creditsLeft(pieces); used+left != sent {
			t.Errorf("%d pieces: the sender waits for %d and %d credits of %d", pieces, used, left, sent)
		}
	}
}

// measure runs both sides, on a device each if the device counts copies, because each side counts those of its own.
func measure(t *testing.T, open func(*testing.T) *verbs.Device, job job) []row {
	t.Helper()
	dev := open(t)
	other := dev
	if _, counts := dev.Stats()[stagedByReceiver]; counts {
		other = open(t)
	}
	a, b := clitest.TCPPair(t)
	c, err := newComparer(dev, link.NewExchange(a), job)
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	errParent, errPeer := clitest.Both(
		func() (err error) {
			rows, err = c.measureAll(t.Context())
			return errors.Join(err, c.Close(t.Context()))
		},
		func() error { return serve(t.Context(), other, link.NewExchange(b)) },
	)
	if errParent != nil || errPeer != nil {
		t.Fatalf("parent: %v; peer: %v", errParent, errPeer)
	}
	return rows
}

func TestMovesEverySize(t *testing.T) { clitest.EachDevice(t, testMovesEverySize) }

func testMovesEverySize(t *testing.T, open func(*testing.T) *verbs.Device) {
	for _, job := range []job{{1, 1}, {100001, 1000}, {cli.MiB, cli.MiB}, {5*cli.MiB + 1, 300000}} {
		rows := measure(t, open, job)
		if len(rows) != 3 {
			t.Fatalf("%+v: %d rows", job, len(rows))
		}
		for _, r := range rows {
			if r.Bytes != job.Size || !r.Verified || r.UserCopies != 0 || r.KernelCopies != 2 || r.Seconds <= 0 {
				t.Errorf("%+v: %+v", job, r)
			}
		}
		if got := rows[1].ReceiverCalls; got != 0 {
			t.Errorf("%+v: the receiver of one-sided writes made %d calls", job, got)
		}
		if rows[0].ReceiverCalls == 0 || rows[2].ReceiverCalls == 0 {
			t.Errorf("%+v: a receiver of TCP or messages made no calls: %+v", job, rows)
		}
	}
}

func TestOutput(t *testing.T) {
	rows := []row{
		{Way: wayTCP, Bytes: 67108864, Seconds: 0.02, MiBPerSecond: 3200, KernelCopies: 2, SenderInCalls: 98.71, SenderWakeups: 60, ReceiverWakeups: -1, ReceiverCalls: 70, ReceiverCPU: 6.66, Verified: true},
		{Way: wayWrite, Bytes: 67108864, Seconds: 0.04, MiBPerSecond: 1600, KernelCopies: 2, SenderInCalls: 2.4, SenderWakeups: 220, ReceiverWakeups: 118, ReceiverCPU: 19.1, Verified: true},
	}
	var b bytes.Buffer
	if err := writeTable(&b, rows); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "compare.golden", b.String())

	b.Reset()
	if err := writeJSON(&b, rows); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Rows  []row
		Notes []string
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Rows) != 2 || back.Rows[0] != rows[0] || len(back.Notes) != len(notes) {
		t.Errorf("JSON came back as %+v", back)
	}
}

// parity: S01
func TestNotesNameTheKernelsCopies(t *testing.T) {
	all := strings.Join(notes, "\n")
	for _, text := range []string{"two on every row, one on each side", "On RDMA hardware they are none"} {
		if !strings.Contains(all, text) {
			t.Errorf("the notes do not say %q", text)
		}
	}
}
