// Package tutorial has the fourteen tutorials of the manual's page docs/tutorial.md: programs of one file each, in which server and
// client are one process.
//
//	go run ./examples/tutorial/04
//
// Each program prints the lines that the page shows, and ends by itself.
package tutorial
