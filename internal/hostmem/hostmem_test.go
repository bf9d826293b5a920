package hostmem

import (
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/testproc"
)

// roles are the functions of child processes of tests.
var roles = map[string]func([]string) error{}

func TestMain(m *testing.M) {
	testproc.Main(roles)
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
