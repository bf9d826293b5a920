// Command hostile attacks each service from ten hosts and measures an innocent client beside them.
//
//	go run ./bench/hostile [-service TEXT] [-attack TEXT] [-duration D] [-rounds N] [-bars=false] [-list]
//
// Each attack gets a server of its own. Server and innocent client run on one processor, ten attackers on the other: from
// the addresses 127.0.0.2 to 127.0.0.11, or over na+sm as ten processes. The reference is the innocent client beside ten processes
// of the attackers' processor that only spin.
//
// Each attack has several rounds: the reference is measured, then for the same time the attack, which begins anew. The percentiles are
// those of the calls of all rounds. In a single round of 3 s, two of 120 newcomers decided the 99th percentile, and a reference of a moment
// when the machine was busy, or was not, decided the ratio. Rounds, unlike a longer attack, do not make the calls at its beginning a
// smaller part of all.
//
// The innocent client has a schedule: a steady connection makes 200 calls a second, and 40 times a second a newcomer
// connects, calls and leaves; files are sent 10 times a second. A call does not wait for the one before, and its time counts from its moment in the
// schedule, because a server that stands still for a second would otherwise delay one call only.
//
// The table has two rows for each attack, one for the steady connection and one for the newcomers. The command fails if a
// call has failed, if the 99th percentile is not below ten times its value beside the spinning processes, or if the server has
// ended. The attackers' rate shows how hard they have tried.
//
// The command starts itself anew for each process; the environment variable CINNABAR_HOSTILE holds the work of the process.
// Processes end with their parent, and by themselves after a time. Linux only.
package main
