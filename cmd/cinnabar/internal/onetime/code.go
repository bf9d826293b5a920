package onetime

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// digits is the number of random digits of a code: 1 in 1,000,000,000 is the chance of a guess.
const digits = 9

// Code is a one-time code: random digits and a check digit.
type Code struct{ text string }

// New returns a new code.
func New() Code {
	n, err := rand.Int(rand.Reader, new(big.Int).Exp(big.NewInt(10), big.NewInt(digits), nil))
	if err != nil {
		panic("onetime: " + err.Error()) // never fails (crypto/rand)
	}
	text := fmt.Sprintf("%0*d", digits, n)
	return Code{text + string(checkDigit(text))}
}

// String returns the code as people read it, such as 4821-730-956.
func (c Code) String() string { return c.text[:4] + "-" + c.text[4:7] + "-" + c.text[7:] }

// Parse reads a code. Hyphens and spaces have no meaning. The error does not contain the code.
func Parse(text string) (Code, error) {
	digitsOnly := strings.NewReplacer("-", "", " ", "").Replace(strings.TrimSpace(text))
	if len(digitsOnly) != digits+1 || strings.Trim(digitsOnly, "0123456789") != "" {
		return Code{}, fmt.Errorf("a code has %d digits, such as 4821-730-956", digits+1)
	}
	if checkDigit(digitsOnly[:digits]) != digitsOnly[digits] {
		return Code{}, errors.New("a digit of the code is wrong: compare it with the sender's")
	}
	return Code{digitsOnly}, nil
}

// checkDigit returns the digit behind the digits of text by Luhn's formula (ISO/IEC 7812-1), which finds one wrong digit, and most pairs of
// neighbours that were swapped.
func checkDigit(text string) byte {
	sum := 0
	for i := range len(text) {
		d := int(text[len(text)-1-i] - '0')
		if i%2 == 0 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return byte('0' + (10-sum%10)%10)
}
