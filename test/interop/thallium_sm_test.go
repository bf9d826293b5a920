//go:build linux

package interop

import "testing"

// TestThalliumSharedMemory runs over na+sm what the tests of Thallium run over TCP, the tutorial on RDMA among them.
// parity(peer): T20 T41 T42
func TestThalliumSharedMemory(t *testing.T) {
	overSharedMemory(t, false, []named{
		{"ThalliumCToC", TestThalliumCToC},
		{"ThalliumClientC", TestThalliumClientC},
		{"ThalliumServerC", TestThalliumServerC},
		{"ThalliumGoToGo", TestThalliumGoToGo},
		{"ThalliumClientOnlyC", TestThalliumClientOnlyC},
		{"ThalliumShutdown", TestThalliumShutdown},
		{"ProviderDefaults", TestProviderDefaults},
		{"TutorialRDMA", TestTutorialRDMA},
		{"LargeRDMAGo", TestLargeRDMAGo},
	})
}

// TestThalliumTypeNames has a C++ client that was built to put the names of types in front of its arguments.
// parity(peer): T34
func TestThalliumTypeNames(t *testing.T) {
	rdmaTypesClient.executable(t) // before anything else is built
	host := startExampleServer(t, goProgram(t, "examples/do_rdma/server"))
	c := start(t, rdmaTypesClient, host.addr)
	host.expectLog("the message begins with the names of C++ types")
	if err := c.Wait(); err != nil {
		t.Errorf("the client ends with %v\n%s", err, c.log())
	}
	host.end()
	if err := host.Wait(); err != nil {
		t.Errorf("the server ends with %v\n%s", err, host.log())
	}
}
