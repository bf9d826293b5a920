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
// (RFC 8446, section 7.5). The role keeps the proof of a server from being used as that of a client. The nonces have 32 random bytes, so that no
// answer can be used again. The exporter value is another one on each TLS connection, so a relay that ends TLS at itself has a proof for the
// wrong connection. A client proves nothing before it has verified the server's proof, so a stranger that is dialed learns a nonce alone.
//
// An endpoint is client and server at the same time. A stranger that it dials could pass the exchange on to the endpoint's own listener, and
// would then have a connection there that the endpoint itself has proven. [Nonces] detects that.
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
