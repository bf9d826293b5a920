package xfer

import (
	"slices"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// limited is a device whose port sends short messages only, as that of the kernel's rxe does beside the paper's buffer.
type limited struct {
	verbs.DeviceDriver
	most uint64
}

func (d limited) Query() (verbs.DeviceAttr, error) {
	attr, err := d.DeviceDriver.Query()
	attr.Ports = slices.Clone(attr.Ports)
	for i := range attr.Ports {
		attr.Ports[i].MaxMsgSize = d.most
	}
	return attr, err
}

// A sender whose device sends no message as long as the receiver's buffer does not fill it.
func TestShortMessages(t *testing.T) {
	const most = 3 * minChunk
	dev := device(t, iwarp.Config{})
	s := serve(t, dev, Receiver{}, DirOptions{})
	short := verbs.NewDevice(limited{dev.Driver(), most}) // closed with dev
	data := noise(2*most + 5)
	for name, sender := range map[string]Sender{
		"basic":  {Protocol: Basic},
		"auto":   {},
		"window": {Window: 3, Chunk: minChunk},
	} {
		longest := 0
		sender.Trace = func() Tracer {
			return func(st Step) {
				if st.Op == OpWrite {
					longest = max(longest, st.Bytes)
				}
			}
		}
		res, err := sender.Send(testContext(t), short, s.addr, sourceOf(name, data))
		if err != nil || longest == 0 || longest > most {
			t.Errorf("%s: a write of %d bytes, %+v, %v", name, longest, res, err)
		}
		if _, err := s.outcome(testContext(t)); err != nil {
			t.Error(err)
		}
		s.wantFile(name, data)
	}
	sender := Sender{Chunk: 4 * minChunk}
	_, err := sender.Send(testContext(t), short, s.addr, sourceOf("long", data))
	wantCode(t, err, CodeTooLarge, false, "12288", "MaxMsgSize")
}
