// Package peerbook holds what each transport of Mercury's messages keeps about its peers: the one peer of each address ([Book]), the
// peers with something under way ([Active]), and the operations that wait for expected messages ([Expected]).
//
// A transport locks the state of a peer first, then its Expected, then the Active of the endpoint.
package peerbook
