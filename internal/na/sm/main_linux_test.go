//go:build linux

package sm

import (
	"context"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main(roles)
	sweepKilled()
	goleak.VerifyTestMain(m)
}

// sweepKilled removes the files of runs that were killed, whose private prefixes no later run has: a test that is killed
// has no clean-up, and /dev/shm is memory.
func sweepKilled() {
	prefixes := map[string]bool{}
	for _, dir := range [...]string{defaultShm, defaultSocket} {
		list, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, f := range list {
			if name := strings.TrimPrefix(f.Name(), "."); strings.HasPrefix(name, testPrefix+"_") {
				prefix, _, _ := strings.Cut(name, "-")
				prefixes[prefix] = true
			}
		}
	}
	for prefix := range prefixes {
		if cfg, err := (Config{Prefix: prefix}).withDefaults(); err == nil {
			_ = reclaimAll(context.Background(), &cfg) // its only error is the end of the context
		}
	}
}

// TestSweepKilled kills a process that listens under a private prefix, as a run is killed: its files are swept.
func TestSweepKilled(t *testing.T) {
	prefix := privatePrefix("k")
	s := start(t, "server", prefixEnv+"="+prefix)
	uri, _, err := parseTarget(s.expect("ready "), hostID)
	if err != nil {
		t.Fatal(err)
	}
	s.Kill()
	cfg, err := (Config{Prefix: prefix}).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cfg.objectPath(uri)); err != nil {
		t.Fatal("a killed process has removed its region: ", err)
	}
	eventually(t, "the files are swept", func() bool {
		sweepKilled()
		for _, path := range [...]string{cfg.objectPath(uri), cfg.spareObject(uri), cfg.socketDir(uri), cfg.spareSocket(uri)} {
			if _, err := os.Lstat(path); err == nil {
				return false
			}
		}
		return true
	})
}
