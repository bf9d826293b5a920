package codes_test

import (
	"errors"
	"fmt"

	"cinnabar/codes"
)

// A handler's error becomes the code that its caller receives.
func Example() {
	lookup := func(key string) error {
		return fmt.Errorf("no value for %q: %w", key, codes.NoEntry)
	}
	err := lookup("colour")
	fmt.Println(errors.Is(err, codes.NoEntry))
	fmt.Println(codes.Of(err))
	fmt.Println(codes.Of(errors.New("disk is full")))
	// Output:
	// true
	// HG_NOENTRY
	// HG_OTHER_ERROR
}
