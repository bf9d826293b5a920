package ofiverbs

import "testing"

// TestCreditsGoWithMessages has a client make one call after the other. Both sides grant credits, and nearly all credit packets go with a message: the
// devices make hardly more calls to send than there are messages.
func TestCreditsGoWithMessages(t *testing.T) {
	const calls, spare = 400, 6
	sdev, cdev := openDevice(t), openDevice(t)
	server, client := openServer(t, Config{Device: sdev}), openEndpoint(t, Config{Device: cdev})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	count := func() (sends, packets uint64) {
		for _, s := range []map[string]uint64{sdev.Stats(), cdev.Stats()} {
			sends, packets = sends+s["tx_calls"], packets+s["tx_fpdus"]
		}
		return sends, packets
	}
	sends, packets := count()
	for i := range uint32(calls) {
		ask(t, client, to, 2+i, nil)
	}
	s, p := count()
	if credits := p - packets - 2*calls; credits < 2*(calls/mostReceives) {
		t.Errorf("%d packets beside the messages, want at least the credits for %d messages", credits, 2*calls)
	}
	if s -= sends; s > 2*calls+spare {
		t.Errorf("%d calls to send for %d messages and %d packets", s, 2*calls, p-packets)
	}
}
