package xfer

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
)

// Digest names the hash function by which the fast protocol compares whole files before they get their names. Both sides must
// have the function: this package has SHA256, and programs add others by [Hashes]. Each chunk has a CRC32C in any case.
type Digest string

const (
	// SHA256 compares the SHA-256 of both sides. It is the default of a [Sender].
	SHA256 Digest = "sha256"
	// NoDigest compares only the checksums of the chunks.
	NoDigest Digest = "none"
)

// Limits of digests, in bytes.
const (
	SumLen         = 32 // of each sum
	MaxDigestLen   = 16 // of the longest name of a digest
	maxListedNames = 60 // of the list of names in an error text
)

// String returns the name, which commands use.
func (d Digest) String() string { return string(d) }

// Hashes maps the names of further digests to constructors of their hash functions. The sums must have [SumLen] bytes. A name has 1
// to [MaxDigestLen] lower-case letters, digits and hyphens. Sender and receiver must give the same function the same name. Send and
// Serve call each constructor once to check it, and each transfer calls that of its digest once. One goroutine at a time calls
// the methods of the hash. A nil map adds no digest.
type Hashes map[Digest]func() hash.Hash

// find returns the constructor of d; nil if h has none, as for NoDigest.
func (h Hashes) find(d Digest) func() hash.Hash {
	if d == SHA256 {
		return sha256.New
	}
	return h[d]
}

// has reports whether a transfer can use d.
func (h Hashes) has(d Digest) bool { return d == NoDigest || h.find(d) != nil }

// unknown returns the refusal of a digest that side, "receiver" or "sender", does not have.
func (h Hashes) unknown(d Digest, side string) *failure {
	names := append(slices.Sorted(maps.Keys(h)), SHA256, NoDigest)
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = string(n)
	}
	text := strings.Join(list, ", ")
	if len(text) > maxListedNames {
		text = text[:maxListedNames] + "..."
	}
	return failf(CodeUnsupported, "digest %q is not known here; this %s has %s", string(d), side, text)
}

// check refuses names and functions that cannot be used.
func (h Hashes) check() error {
	for _, d := range slices.Sorted(maps.Keys(h)) {
		if err := checkDigestName(d); err != nil {
			return failf(CodeUnsupported, "Hashes: %w", err)
		}
		var sum hash.Hash
		if h[d] != nil {
			sum = h[d]()
		}
		if sum == nil {
			return failf(CodeUnsupported, "Hashes: digest %q has no constructor, or its constructor returns nil", string(d))
		}
		if n := sum.Size(); n != SumLen {
			return failf(CodeUnsupported, "Hashes: the sums of digest %q have %d bytes; %d are needed", string(d), n, SumLen)
		}
	}
	return nil
}

// checkDigestName refuses names that cannot cross the network, and those of the package's own digests, which cross as numbers.
func checkDigestName(d Digest) error {
	switch {
	case d == SHA256 || d == NoDigest:
		return fmt.Errorf("the name %q is that of a digest of package xfer", string(d))
	case d == "" || len(d) > MaxDigestLen:
		return fmt.Errorf("the name of a digest has %d bytes; 1 to %d are possible", len(d), MaxDigestLen)
	case strings.Trim(string(d), "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return fmt.Errorf("the name %q of a digest has characters besides lower-case letters, digits and hyphens", string(d))
	}
	return nil
}

// named reports whether d crosses the network as a name.
func (d Digest) named() bool { return d != SHA256 && d != NoDigest }
