// Command crowd measures one server of calls over ofi+tcp that has thousands of connections.
//
//	go run ./bench/crowd [-idle N] [-active N] [-hosts N] [-duration D] [-quiet D] [-profile FILE]
//
// The server is a process of its own. Its clients are engines in further processes, at the addresses 127.0.0.2 and on, one connection each.
// First the idle clients connect and make one call each. Then the active clients call for a time, one call at a time each. At the end
// every idle client makes a second call, which succeeds only if its connection still works.
//
// The command prints the memory of an idle connection in the server: the growth of the resident set, after a collection that returned free
// pages to the system, divided by the number of connections. Memory of the kernel is no part of a resident set. Beside it stand the parts that Go's
// runtime knows: heap and stacks, goroutines and descriptors. It also prints the processor time of the server while all connections are idle,
// and of the active clients the rate, the median, the 99th percentile, and the calls of the slowest and the fastest client, because
// a percentile of all calls does not show a client that starves.
//
// Each process raises its limit of open files as far as the system permits. If that is not enough for the clients asked for, the command
// takes as many as there is room for and prints the limit and the number. -profile writes a heap profile of the server
// with its idle connections; the server then samples each allocation, which makes it larger, so the memory above must come from another run.
//
// The command starts itself anew for each process; the environment variable CINNABAR_CROWD holds the role of the process. A process
// ends with its standard input. Linux only.
package main
