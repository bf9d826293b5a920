// Command cinnabar is the command line of the project: it shows RDMA at work
// on any Linux machine, measures it beside plain TCP, and speaks to the tools
// that rdma-core and Mercury ship.
//
//	cinnabar demo              the main job on loopback, in two processes
//	cinnabar recv              receive files into a directory
//	cinnabar send FILE... HOST send files there, as fast as the machine allows
//	cinnabar perf              calls and bulk transfers, on the wire of Mercury's perf programs
//	cinnabar perf verbs [HOST] bandwidth and latency of RDMA operations, as perftest has them
//	cinnabar info              protocols, and the address that would be chosen
//	cinnabar doctor            faults of this machine, with causes and remedies
//	cinnabar query ADDRESS     the RPCs, pools, statistics and configuration of a running process
//	cinnabar call ADDRESS NAME call an RPC
//	cinnabar ping ADDRESS      round trips, and the layer that does not answer
//	cinnabar id NAME           the ids of an RPC's name
//	cinnabar token new         make the secret by which processes authenticate each other
//	cinnabar shutdown ADDRESS  ask a running process to end
//	cinnabar mem               lend memory, and use it
//	cinnabar devices -v        the RDMA devices, in the layout of ibv_devinfo
//	cinnabar pingpong [HOST]   latency, in the manner of ibv_rc_pingpong
//	cinnabar rping -s | -c     read and write rounds, on the wire of rping
//	cinnabar compare           TCP against verbs: copies, wake-ups, receiver
//
// Results go to standard output, everything else to standard error. The exit
// code is 0 for success, 1 for a failure, 2 for a wrong command line, 3 or 4
// for findings of doctor, 128 plus the signal's number after an interrupt that left work undone. docs/command.md
// has the rules that all commands share.
package main

import (
	"os"

	"cinnabar/cmd/cinnabar/internal/cli"
)

func main() { os.Exit(cli.Main(newTree)) }
