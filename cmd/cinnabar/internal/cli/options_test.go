package cli

import "testing"

// The limits of the commands' servers are those of their engines.
func TestEngineLimits(t *testing.T) {
	cfg, err := (&EngineLimits{memoryText: "64MiB", connections: 9}).Config()
	if err != nil || cfg.MaxMemory != 64<<20 || cfg.MaxConnections != 9 {
		t.Errorf("%+v, %v", cfg, err)
	}
}
