// Package ofiverbs has the bytes of libfabric's verbs provider under its utility provider ofi_rxm (FI_PROTO_RXM), as Mercury's OFI
// plugin uses them for addresses like "ofi+verbs;ofi_rxm://10.7.0.1:5555": the private data of connections, the packets of messages and
// credits, and the handles of memory. docs/wire-ofiverbs.md describes them.
//
// The package parses and builds these bytes. It has no endpoint yet.
package ofiverbs
