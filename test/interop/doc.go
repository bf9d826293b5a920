// Package interop runs this module against the C libraries that it shares its wire with: Mercury and Margo over
// libfabric's tcp provider, in both roles.
//
// Its tests compile the small programs in directories c and cpp with the compiler and pkg-config, and drive them through
// their standard input and output. Packages are found as pkg-config finds them, so the environment says against which
// installation the tests run:
//
//	PKG_CONFIG_PATH=$MERCURY/lib/pkgconfig:$MARGO/lib/pkgconfig go test ./test/interop
//
// Where Mercury or Margo is missing, the tests that need it are skipped and say so. An installation that was built with
// checksums is recognized, and the tests then use them. Everything happens on loopback.
//
// # Programs
//
// hg_peer and margo_peer serve a set of RPCs and call the same set elsewhere, one command per line; the comments at the
// top of their files list options and commands, types.h the arguments. The Go side of the tests serves and calls the
// same set. thallium_peer in directory cpp is their like in C++, on Thallium; do_rdma_server and do_rdma_client are the two
// halves of its tutorial on RDMA, values prints the bytes of values.hpp, and their compiler takes a minute.
// margo_sum_server and margo_sum_client are the two halves of Margo's tutorial. hashids and procs print the ids and the
// bytes that the libraries make of names and values.
//
// # RDMA devices
//
// Where CINNABAR_INTEROP_VERBS names the address of an RDMA device, TestVerbs runs most of these tests over ofi+verbs, and TestVerbsDeaths those that kill
// processes. test/rdmavm/interop does so in a virtual machine with a device in software. CINNABAR_INTEROP_PROGRAMS names a folder that keeps the compiled programs. A system without
// compiler uses the programs of that folder.
//
// # Recorded bytes
//
// testdata holds the output and the messages of the C libraries, so that tests without them can check the same: hashids.txt the ids of the
// names in names.txt, procs.txt the encodings of values of every type, margo_functions.txt the names of Margo's functions,
// and wire/*.hex whole conversations, among them those of the programs that come with Margo: margo_example, margo_test,
// margo_multiplex and tutorial_*. Each file begins with its provenance. A conversation has a line
//
//	conn dialer=IP:PORT listener=IP:PORT
//
// for each connection, with the addresses at which both sides listen, then one line for each connection management or
// data message in the order of its arrival: "> HEX" from the side that dialed, "< HEX" from the other, "> close" and
// "< close" where the stream ended. Process ids, ports, base pointers, padding, byte 5 of messages without RMA and
// byte 7 of all of them differ from run to run.
//
// In those files the client is a program in C. servers/*.txt are conversations of clients in Go with servers in C and C++, in the
// format of package internal/recording, which has formulas in place of long payloads and a mark at each field that differs.
// TestRecordedServers plays the servers to the clients of the table scenes, and finds any other byte that differs.
//
//	go test ./test/interop -run TestServersOfC          # the same clients at the servers themselves
//	go test ./test/interop -run TestServersOfC -record  # and write the recordings anew
//
// CINNABAR_C_PROGRAMS names the directories of the servers that come with Mercury, Margo and Thallium, separated by colons. A build with checksums and
// one without have recordings of their own, so they are made in two runs.
//
// testdata/verbs/*.hex are conversations of two programs in C over RDMA devices, which TestReplayVerbsClients and TestReplayVerbsServers play to both
// roles over the software device. A file has a line "memory KEY ADDRESS SIZE" about the memory of the client, the private data of the connection
// ("request HEX" and "accept HEX"), and then one line for each packet, "> HEX" from the client and "< HEX" from the server, and "< read" or
// "< write" where the server reads or writes all of that memory.
//
// Recordings over na+sm are in testdata of internal/na/sm; sum_waiting.txt describes their format. The recordings of transfers,
// pull_*.txt and push_*.txt, also have masks for the bytes of addresses.
//
//	go test ./test/interop -run TestRecordSharedMemory          # compare the C programs with the recordings
//	go test ./test/interop -run TestRecordSharedMemory -record  # write the recordings of transfers anew
package interop
