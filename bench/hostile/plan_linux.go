package main

import (
	"context"
	"io"
	"slices"
	"time"
)

// service is a target of attacks.
type service struct {
	serve  func(a *attack, log io.Writer) (*server, error)
	client func(ctx context.Context, at notice) (*client, error)
}

// server is a running service.
type server struct {
	notice notice
	close  func() (longestClose time.Duration)
}

// The services, by the names in the table.
const (
	rpcTCP   = "RPC over ofi+tcp"
	rpcVerbs = "RPC over ofi+verbs"
	rpcSM    = "RPC over na+sm"
	files    = "file transfer"
	memory   = "rmem over verbs"
)

var services = map[string]*service{
	rpcTCP:   {serveTCP, rpcClient("ofi+tcp://127.0.0.1")},
	rpcVerbs: {serveVerbs, verbsClient},
	rpcSM:    {serveSM, rpcClient("na+sm://")},
	files:    {serveFiles, fileClient},
	memory:   {serveMemory, memoryClient},
}

// attack is one kind of hostile peer.
type attack struct {
	service string
	name    string
	about   string
	run     attackFunc
	// handlers is how many handlers the server has at once; 0: the default.
	handlers int
	// sameHost has the attackers connect from the address of the innocent client.
	sameHost bool
	// stopped has the attackers stopped and continued by signals.
	stopped bool
	// lend has the server expose memory and close it again, all the time.
	lend bool
}

// attacks are in the order of the table.
var attacks = []attack{
	{service: rpcTCP, name: "hold", about: "requests with a handler that pulls from its caller, which answers no read", run: holdByPull},
	{service: rpcTCP, name: "unknown-input", about: "announcements of long arguments, never served, for an RPC that does not exist", run: announceUnknown},
	{service: rpcTCP, name: "known-input", about: "announcements of long arguments, never served, for an RPC that exists", run: announceKnown},
	{service: rpcTCP, name: "results", about: "long results that are never fetched, from many ports", run: leaveResults, handlers: 64},
	{service: rpcTCP, name: "unread", about: "requests without reading the responses", run: leaveResponses},
	{service: rpcTCP, name: "turns", about: "many ports of each host compete for handlers", run: competeByPorts, handlers: 64},
	{service: rpcTCP, name: "half-open", about: "connections that say nothing", run: halfOpen},
	{service: rpcTCP, name: "idle", about: "connections that identify themselves, and say nothing else", run: idle},
	{service: rpcTCP, name: "garbage", about: "random bytes, and structured messages with random fields", run: garbage},
	{service: rpcTCP, name: "keys", about: "reads of memory by keys that are guessed", run: guessKeys},
	{service: rpcTCP, name: "hijack", about: "connections that claim the port of the innocent client, from its own address", run: hijack, sameHost: true},
	{service: rpcTCP, name: "slow-read", about: "slow readers of exposed memory that the server closes", run: readSlowly, lend: true},

	{service: rpcVerbs, name: "hold", about: "requests with a handler that pulls from its caller, which answers no read", run: holdByPull},
	{service: rpcVerbs, name: "unknown-input", about: "announcements of long arguments, never served, for an RPC that does not exist", run: announceUnknown},
	{service: rpcVerbs, name: "known-input", about: "announcements of long arguments, never served, for an RPC that exists", run: announceKnown},
	{service: rpcVerbs, name: "results", about: "long results that are never fetched, from many ports", run: leaveResults, handlers: 64},
	{service: rpcVerbs, name: "unread", about: "requests without reading the responses", run: leaveResponses},
	{service: rpcVerbs, name: "no-credits", about: "requests without room for the responses", run: withholdCredits},
	{service: rpcVerbs, name: "many-credits", about: "grants of more room than any device has", run: grantTooMuch},
	{service: rpcVerbs, name: "turns", about: "many ports of each host compete for handlers", run: competeByPorts, handlers: 64},
	{service: rpcVerbs, name: "half-open", about: "connections that say nothing", run: halfOpen},
	{service: rpcVerbs, name: "handshakes", about: "connection requests of one byte every 20 ms", run: connectSlowly},
	{service: rpcVerbs, name: "flood", about: "connections that are made and given up", run: floodVerbs},
	{service: rpcVerbs, name: "idle", about: "connections that identify themselves, and say nothing else", run: idle},
	{service: rpcVerbs, name: "unfinished", about: "requests of which the last segment never comes", run: neverFinish},
	{service: rpcVerbs, name: "garbage", about: "random bytes, segments, connection requests and packets", run: garbageVerbs},
	{service: rpcVerbs, name: "keys", about: "reads and late writes of memory by keys that are guessed", run: guessRegions},
	{service: rpcVerbs, name: "hijack", about: "connections that claim the port of the innocent client, from its own address", run: hijack, sameHost: true},
	{service: rpcVerbs, name: "slow-read", about: "slow readers of exposed memory that the server closes", run: readRegionSlowly, lend: true},

	{service: rpcSM, name: "flood", about: "connections that are made and released", run: floodSM},
	{service: rpcSM, name: "commands", about: "garbage on the socket, with descriptors of all kinds", run: garbageCommands},
	{service: rpcSM, name: "rings", about: "garbage in the rings of a connection", run: garbageRings},
	{service: rpcSM, name: "full-eventfd", about: "eventfds that are full, and block", run: fillEventfd},
	{service: rpcSM, name: "unread", about: "requests without reading the responses", run: leaveResponsesSM},
	{service: rpcSM, name: "hold", about: "calls that keep handlers for a second", run: holdBySleep},
	{service: rpcSM, name: "stopped", about: "clients that are stopped in the middle of their calls (SIGSTOP)", run: manyCalls, stopped: true},

	{service: files, name: "half-open", about: "connections that say nothing", run: halfOpen},
	{service: files, name: "places", about: "connections that take a place and send nothing", run: takePlaces},
	{service: files, name: "hellos", about: "random hellos, names and messages", run: hostileHellos},
	{service: files, name: "slow", about: "senders that send 4 KiB every 200 ms", run: sendSlowly},

	{service: memory, name: "half-open", about: "connections that say nothing", run: halfOpen},
	{service: memory, name: "immediate", about: "a write of the whole ring with immediate data", run: writeImmediate},
	{service: memory, name: "invalidate", about: "invalidation, and reads, of memory by the key of another connection", run: invalidateForeign},
	{service: memory, name: "keys", about: "writes to memory by keys that are guessed", run: guessSTags},
	{service: memory, name: "quota", about: "allocations up to the quota", run: allocAll},
	{service: memory, name: "silent", about: "sessions that say hello and nothing else", run: silentSessions},
}

// attackOf returns the attack of a service by its name, nil if there is none.
func attackOf(service, name string) *attack {
	i := slices.IndexFunc(attacks, func(a attack) bool { return a.service == service && a.name == name })
	if i < 0 {
		return nil
	}
	return &attacks[i]
}
