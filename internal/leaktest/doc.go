// Package leaktest fails the tests of a package that leave memory mapped.
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(leaktest.Exit)) }
package leaktest

import (
	"fmt"
	"os"

	"cinnabar/internal/hostmem"
)

// Exit ends the process with code, the result of the tests. If code is 0 and package hostmem has mappings left, it prints their
// number and the process ends with status 1.
func Exit(code int) {
	if n := hostmem.Mapped(); n != 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "%d mappings left behind\n", n)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // goleak leaves the end of the process to its cleanup function
}
