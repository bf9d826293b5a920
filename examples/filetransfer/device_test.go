package filetransfer

import (
	"strings"
	"testing"

	"cinnabar/verbs/iwarp"
)

func TestDeviceWithoutImmediates(t *testing.T) {
	dev := openDevice(t, iwarp.Config{Name: "old0", NoImmediates: true})
	if err := check(dev); err == nil || !strings.Contains(err.Error(), "old0") || !strings.Contains(err.Error(), "immediate") {
		t.Errorf("got %v", err)
	}
}

// The software device takes what is no longer than the server's buffer in one message.
func TestLongestMessage(t *testing.T) {
	if n, err := LongestMessage(openDevice(t, iwarp.Config{})); n != BufferSize || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
