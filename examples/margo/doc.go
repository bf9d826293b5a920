// Package margo has the common parts of the programs of the margo examples: the procedures of the programs that come with Margo as
// examples and tests, with their types, and the handlers that more than one of the programs has.
//
// Each program here does the work of one of Margo's, so that either end of a pair can be C:
//
//	server                 margo-example-server, margo-test-server
//	client                 margo-example-client; with -remote margo-test-client, with -timeout margo-test-client-timeout
//	multiplex/server       margo-example-mp-server
//	multiplex/client       margo-example-mp-client
//	composition/daemon     composed-svc-daemon
//	composition/benchmark  composed-benchmark
//
// A server prints the address that clients take as argument, and runs until a client ends it or it is interrupted.
package margo
