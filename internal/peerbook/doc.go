// Package peerbook holds the records that each transport of Mercury's messages keeps about its peers: the one peer of each address
// ([Book]), the peers with a connection or an operation under way ([Active]), the operations that wait for expected messages
// ([Expected]), and the calls that their callers have given up ([GivenUp]).
//
// Lock order: the lock of a peer's own state first, then its Expected, then the Active of the endpoint.
package peerbook
