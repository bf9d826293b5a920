//go:build !unix

package cinnabar

import (
	"errors"
	"fmt"
	"os"
)

// mapFile refuses: mapping files is written for Unix only.
func mapFile(f *os.File, size int, write bool) (mapped []byte, unmap func() error, err error) {
	return nil, nil, fmt.Errorf("map %d bytes of %s: %w on this system", size, f.Name(), errors.ErrUnsupported)
}
