package filexfer

import (
	"hash"

	"github.com/zeebo/blake3"

	"cinnabar/xfer"
)

// digestBLAKE3 is BLAKE3 with sums of 256 bits.
const digestBLAKE3 xfer.Digest = "blake3"

// hashes returns the digests that the commands add to those of package xfer.
func hashes() xfer.Hashes {
	return xfer.Hashes{digestBLAKE3: func() hash.Hash { return blake3.New() }}
}
