//go:build !linux

package verbstest

import "testing"

// dropPrivileges skips the test: only Linux limits locked memory in this way.
func dropPrivileges(t *testing.T, limit uint64) {
	t.Helper()
	t.Skipf("no limit of locked memory can be set on this system (wanted %d bytes)", limit)
}
