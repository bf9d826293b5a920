// Package tokenproof lets the two ends of a connection prove to each other that they have the same token, without sending it.
//
// The exchange comes before the connection messages of the protocol, and inside TLS where there is TLS:
//
//	client                                                      server
//	  | hello:     nonce of the client                             |
//	  |---------------------------------------------------------> |
//	  | challenge: nonce of the server, proof of the server        |
//	  | <--------------------------------------------------------- |
//	  | proof:     proof of the client                             |
//	  |---------------------------------------------------------> |
//
// A proof is the HMAC-SHA-256, with the token as key, over the role of its sender, both nonces, and the exporter value of the TLS connection
// (RFC 8446, section 7.5). The role is a part, so that a proof of a server cannot be reflected as one of a client. The nonces, of 32 random bytes,
// are parts, so that a proof cannot be replayed. The exporter value is a part, because it differs on each TLS connection: a relay that terminates
// TLS has a proof for the wrong connection. A client proves nothing before it has verified the server's proof, so a stranger that an endpoint
// dials learns only the nonce.
//
// An endpoint is client and server at the same time. A stranger that the endpoint dials could relay the exchange to the endpoint's own listener,
// and would then have a connection there for which the endpoint itself has made the proof. [Nonces] detects such a relay.
//
// Each message begins with a head:
//
//	 0               1               2               3
//	+---------------+---------------+---------------+---------------+
//	| 'c'             'n'             't'             'k'           |
//	+---------------+---------------+---------------+---------------+
//	| version 1     | kind          | reason        | 0             |   kind 1 hello, 2 challenge, 3 proof, 4 refusal
//	+---------------+---------------+---------------+---------------+
//	| hello: nonce 32; challenge: nonce 32, proof 32; proof: proof 32; refusal: nothing
package tokenproof
