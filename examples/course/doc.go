// Package course has the programs of the course "RDMA from zero, without hardware", docs/course. Each of the first twelve lessons has a program
// of one file, in which both ends of a connection are in one process, and an exercise with a test.
//
//	go run ./examples/course/01_send_receive
//	go test -v ./examples/course/01_send_receive/exercise
//
// The test of an exercise is skipped while its function is as it was delivered. With the environment variable COURSE=1 it fails instead.
package course
