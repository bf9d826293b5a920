package hostmem

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childEnv names the part of this test binary that runs as a child process.
const childEnv = "CINNABAR_HOSTMEM_CHILD"

// children are those parts by name; each returns the exit status.
var children = map[string]func() int{}

func TestMain(m *testing.M) {
	if run, ok := children[os.Getenv(childEnv)]; ok {
		os.Exit(run())
	}
	goleak.VerifyTestMain(m)
}

// mustMap maps size bytes for the length of the test.
func mustMap(t testing.TB, size int) []byte {
	t.Helper()
	b, err := Map(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unmap(b); err != nil {
			t.Errorf("unmap: %v", err)
		}
	})
	return b
}
