// Package secure shows that all that uses the software device is encrypted with it, and that the plain protocols work through a tunnel.
//
// Its tests run streams, records, file transfer, remote memory and RPCs between two devices with TLS and a token, with a man in the middle who
// records the bytes, and the same protocols without TLS through a relay that encrypts. There is no other code here.
package secure
