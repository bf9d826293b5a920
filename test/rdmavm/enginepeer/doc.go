// Command enginepeer is one side of a test of engines on ofi+verbs: of their calls, transfers and one-way requests, and of the death of either
// process at any of these. Both sides are this program, each on a device of its own choice.
//
//	enginepeer -address ADDRESS [-device NAME]                         serve until interrupted
//	enginepeer -address ADDRESS [-device NAME] -to SERVER              check requests of many sizes and transfers, each byte of them
//	enginepeer -address ADDRESS [-device NAME] -to SERVER -kill PHASE  make the server kill itself in a phase
//	enginepeer -address ADDRESS [-device NAME] -to SERVER -die PHASE   kill itself in a phase
//	enginepeer -address ADDRESS [-device NAME] -to SERVER -ask PHASE   ask the server how the -die of that phase ended on its side
//	enginepeer -address ADDRESS [-device NAME] -to SERVER -cross       connect 100 new engines to the server while it connects to them
//
// ADDRESS is like ofi+verbs://10.9.0.1:7000. The program uses the software device, verbs/iwarp, unless -device names a real one. It prints
// "ready" and its address when it can be called, and "ok" at the end if all checks have passed. The exit status is 0 only then.
//
// # Phases
//
// One process, the survivor, calls the procedure doom of the other, the victim, which kills itself by SIGKILL:
//
//	connect    while 10 engines of the survivor connect to it
//	handler    in the handler
//	oneway     in the handler, of a request without response
//	pull       while it reads memory of the survivor
//	push       while it writes memory of the survivor
//	lend-pull  while the survivor reads memory of the victim
//	lend-push  while the survivor writes memory of the victim
//	idle       while nothing is under way on their connection
//
// The call and the transfer of the survivor must end with an error about the peer within 10 seconds, without a deadline's help, and leave no
// connection, call or transfer behind. With -kill the survivor is the client, and afterwards calls the server's address until a new server, which the
// caller of the program starts there, responds. With -die the survivor is the server, and goes on serving.
package main
