// Package iwarp holds the wire protocols of iWARP in its folders, from the
// bottom up: mpa frames a TCP stream (RFC 5044, RFC 6581), ddp says where a
// frame's payload belongs (RFC 5041), rdmap gives the frames their meaning (RFC
// 5040, RFC 7306).
//
//	TCP octets ──▶ mpa.Framer ──▶ ddp.ParseHeader ──▶ rdmap.Receiver ──▶ device
//
// All three are pure: they take bytes and return values, and neither wait nor
// start anything. The device that drives them is verbs/iwarp.
//
// The package itself has no code. Its tests replay recorded conversations with
// Linux's siw through the three layers; testdata has the source of each recording, and
// testdata/replay its contents.
package iwarp
