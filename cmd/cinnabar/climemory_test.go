package main

import (
	"os"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/rmem"
)

// servingMemory returns the address of a server that lends memory.
func servingMemory(t *testing.T) string {
	t.Helper()
	e := clitest.Engine(t, nil)
	srv, err := rmem.Serve(e, rmem.Config{Quota: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Shut(srv) })
	return e.Addr()
}

// token5 returns the token of a region of 5 bytes at a server.
func token5(t *testing.T, server string) string {
	t.Helper()
	o := clitest.WantRun(t, cli.ExitOK, []string{"mem", "alloc", server, "5"})
	return strings.TrimSpace(o.Out.String())
}

// endless makes a file that takes longer to send than any test runs, without data.
func endless(t *testing.T) string {
	t.Helper()
	path := clitest.WriteTemp(t, "endless", nil)
	if err := os.Truncate(path, 64<<30); err != nil {
		t.Skipf("the file system of %s has no files of 64 GiB: %v", path, err)
	}
	return path
}
