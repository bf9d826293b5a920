// Package ofiaddr has the addresses of Mercury's OFI plugin: the binary form that travels in requests and in bound bulk descriptors,
// the strings by which programs name a peer, and the order of addresses that decides which of two crossing connections survives.
// The networks with such addresses, internal/na/ofitcp and internal/na/ofiverbs, differ in the scheme alone.
//
// All parsers accept bytes and strings of any content. All functions are safe for concurrent use.
package ofiaddr
