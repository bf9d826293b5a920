// Package hostquota counts, for each remote host, the resources that the host's connections hold, and bounds them.
//
// A [Book] belongs to one engine, device or receiver and has one limit for each [Resource]. Every remote host has one
// [Account] in it: an IPv4 address, an IPv6 network of 64 bits, or, over shared memory, a process of a user. A
// connection finds the account of its host once, with [Book.Account]; after that [Account.Take] and [Account.Give] cost
// four atomic additions and allocate nothing.
//
// # Shares
//
// Three quarters of a limit are common. Of them a host may hold three units for each unit of the common part that stays
// free. The last quarter is for hosts that hold little: any host may hold one part in [FirstPart] of the limit, two units
// at least, or one of a limit below 32, for as long as anything is free at all.
//
//	limit 4096, each host takes as much as it can:
//
//	1st host   2304   three quarters of the common 3072
//	2nd         576   three quarters of the rest
//	3rd         144
//	4th          36
//	5th, ...     32   one part in 128; at least 30 hosts get that
//
// So one host is hardly limited, and a host that comes late finds something free however greedy the hosts before it are.
// When hosts give back and take again, their holdings become equal, because the one with less is granted first. A limit
// below [Undivided] is not divided: a service with two workers would otherwise leave one of them idle.
//
// The rule for the common part is the one by which switches share one buffer among their ports (A. K. Choudhury and E. L.
// Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6 (2),
// 1998), with a factor of three.
//
// # Turns
//
// Processor time is shared, too: [Turns] limits the number of goroutines that do one kind of work for connections at the same time, and gives a free place to
// the host that has used the least time. [Readers] are the Turns of the background goroutines that read connections, over ofi+tcp and over
// ofi+verbs.
//
// # Concurrency
//
// All functions and methods are safe for concurrent use. Two callers that compete for the last unit may both be refused.
package hostquota
