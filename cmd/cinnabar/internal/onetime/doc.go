// Package onetime lets two programs of two people make a secret key from a short code that one of them reads to the other.
//
// The nouns:
//
//   - A [Code] has nine random digits and a check digit, which finds mistakes of typing before any guess is spent.
//   - [Offer] is the side that has made the code and dials, [Accept] the side where it was typed and that listens. Both return the same
//     32 bytes if both have the same code.
//
// The exchange is CPace (draft-irtf-cfrg-cpace) over ristretto255 with SHA-512, and a confirmation in both directions:
//
//	Offer                                    Accept
//	  "cnxc", 1, 0 0 0, sid (16), Ya (32) ──▶
//	                                      ◀── "cnxc", 1, 0 0 0, Yb (32)
//	  confirmation of Offer (32)          ──▶ compares; the code is spent now
//	                                      ◀── confirmation of Accept (32)
//
// A peer that does not know the code learns nothing from a run but whether its one guess was right, which has a probability of 1 in 1,000,000,000. Accept
// answers one run in its life, also if the peer breaks it off, and Offer confirms one. A relay in the middle may pass the messages on, but does not get the key; the caller binds
// the key to the connection that it protects.
package onetime
