package cli

import "testing"

// A client opens its engine on the address from which the server's is reached.
func TestLocalFor(t *testing.T) {
	for address, want := range map[string]string{
		"ofi+tcp://127.0.0.1:1234":                  "ofi+tcp://127.0.0.1:0",
		"tcp://localhost:1234":                      "tcp://127.0.0.1:0",
		"ofi+tcp://nonsense":                        "ofi+tcp",
		"ofi+tcp":                                   "ofi+tcp",
		"uid://1#na+sm://2-0#ofi+tcp://127.0.0.1:3": "ofi+tcp://127.0.0.1:0",
		"": "",
	} {
		if got := LocalFor(t.Context(), address); got != want {
			t.Errorf("for %q: %q, want %q", address, got, want)
		}
	}
}
