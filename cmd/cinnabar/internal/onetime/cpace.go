package onetime

import (
	"crypto/rand"
	"crypto/sha512"
	"encoding/binary"
	"errors"

	"github.com/gtank/ristretto255"
)

// Constants of CPace-RISTR255-SHA512 (draft-irtf-cfrg-cpace, section 7.3 and appendix B.3).
const (
	cpaceDSI   = "CPaceRistretto255"
	cpaceISK   = cpaceDSI + "_ISK"
	cpaceBlock = 128 // bytes of a block of SHA-512
	shareLen   = 32  // bytes of an encoded element of the group
	sidLen     = 16
)

// pake is a password-authenticated key exchange in which each side sends one message.
type pake interface {
	// share returns the message for the peer.
	share() []byte
	// finish returns the secret for the peer's message. Both sides get the same one if they have the same password, and different ones
	// otherwise. An error says that no peer sends such a message.
	finish(peer []byte) ([]byte, error)
}

// cpace is one side of CPace.
type cpace struct {
	sid       []byte
	own       []byte // the encoded share
	scalar    *ristretto255.Scalar
	initiator bool
	ad, peer  string // associated data of both sides
}

var _ pake = (*cpace)(nil)

// The associated data of the sides, and the identifier of the channel.
const (
	adOffer   = "offer"
	adAccept  = "accept"
	channelID = "cinnabar one-time code 1"
)

// newCPace begins an exchange.
func newCPace(password, sid []byte, initiator bool) *cpace {
	var random [64]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	c := &cpace{sid: sid, scalar: ristretto255.NewScalar().FromUniformBytes(random[:]), initiator: initiator, ad: adAccept, peer: adOffer}
	if initiator {
		c.ad, c.peer = adOffer, adAccept
	}
	c.own = ristretto255.NewElement().ScalarMult(c.scalar, generator(password, []byte(channelID), sid)).Encode(nil)
	return c
}

func (c *cpace) share() []byte { return c.own }

func (c *cpace) finish(peer []byte) ([]byte, error) {
	element := ristretto255.NewElement()
	if err := element.Decode(peer); err != nil {
		return nil, errors.New("the peer's share is no element of the group")
	}
	secret := ristretto255.NewElement().ScalarMult(c.scalar, element)
	if secret.Equal(ristretto255.NewElement().Zero()) == 1 {
		return nil, errors.New("the peer's share is the identity of the group")
	}
	a, ada, b, adb := c.own, c.ad, peer, c.peer
	if !c.initiator {
		a, ada, b, adb = b, adb, a, ada
	}
	return intermediateKey(c.sid, secret.Encode(nil), a, []byte(ada), b, []byte(adb)), nil
}

// generator returns the generator that the password selects.
func generator(password, channel, sid []byte) *ristretto255.Element {
	pad := max(0, cpaceBlock-len(lv(nil, password))-len(lv(nil, []byte(cpaceDSI)))-1)
	text := lv(lv(nil, []byte(cpaceDSI)), password)
	text = lv(lv(lv(text, make([]byte, pad)), channel), sid)
	h := sha512.Sum512(text)
	return ristretto255.NewElement().FromUniformBytes(h[:])
}

// intermediateKey returns the key ISK of an exchange. The share of the initiator is a.
func intermediateKey(sid, secret, a, ada, b, adb []byte) []byte {
	text := lv(lv(lv(nil, []byte(cpaceISK)), sid), secret)
	text = lv(lv(lv(lv(text, a), ada), b), adb)
	h := sha512.Sum512(text)
	return h[:]
}

// lv appends the length of b in LEB128, and b.
func lv(to, b []byte) []byte { return append(binary.AppendUvarint(to, uint64(len(b))), b...) }
