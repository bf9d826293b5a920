package filexfer

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/testproc"
)

// Of the test of large files. It needs minutes and 5 GiB of room, so it runs by name:
//
//	CINNABAR_LARGE=1 go test -v -run TestLargeFile ./cmd/cinnabar
const (
	largeEnv      = "CINNABAR_LARGE"
	largeSize     = 5<<30 + 1
	largeResident = 64 * cli.MiB    // the most that either side may have in memory
	largeLimit    = 5 * time.Minute // of one transfer, which takes 10 to 45 s where other programs use the disk and the processors too
)

// A file of more than 4 GiB, most of it holes, crosses in every way with equal
// digests, and neither side holds much of it in memory.
// parity(slow): B14 B15
func TestLargeFile(t *testing.T) {
	if os.Getenv(largeEnv) == "" {
		t.Skipf("takes minutes; %s=1 runs it", largeEnv)
	}
	path := clitest.WriteTemp(t, "large", []byte("at the beginning"))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{1<<31 - 3, 1<<32 - 3, largeSize - 6} { // where 31 and 32 bits end
		if _, err := f.WriteAt([]byte("hereby"), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, mode := range modes {
		for _, family := range loopbacks {
			t.Run(mode.name+"/"+family.name, func(t *testing.T) {
				server := startRecv(t, family.listen, "--once")
				client := clitest.Start(t, append(append([]string{"send"}, mode.args...), path, server.addr)...)
				client.SetLimit(largeLimit)
				server.SetLimit(largeLimit)
				codes := [2]int{client.ExitCode(), server.ExitCode()}
				if codes != [2]int{} {
					t.Fatalf("exit codes %d; client: %s; server: %s", codes, client.Stderr, server.Stderr)
				}
				server.sameFile(t, path)
				t.Logf("%s", strings.TrimSpace(client.Stdout.String()))
				checkResident(t, "sender", client)
				checkResident(t, "receiver", server.Process)
			})
		}
	}
}

// checkResident fails if a process that has ended had more in memory than it may.
func checkResident(t *testing.T, side string, p *testproc.Process) {
	t.Helper()
	used, ok := p.State().SysUsage().(*syscall.Rusage)
	if !ok {
		t.Fatal("the system does not tell how much memory a process had")
	}
	peak := used.Maxrss << 10 // Linux counts KiB
	t.Logf("%s: at most %d MiB resident", side, peak>>20)
	if peak >= largeResident {
		t.Errorf("the %s had %d MiB in memory, the limit is %d MiB", side, peak>>20, largeResident>>20)
	}
}
