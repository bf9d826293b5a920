//go:build linux && !(rdma && cgo)

package rdmacore_test

// rxeLibraryFacts is empty, because package uverbs translates the flag that rdma-core passes on as it is.
var rxeLibraryFacts []fact
