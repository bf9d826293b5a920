package tree

import (
	"context"
	"errors"
	"os"
)

// ScanRoot lists the directory of root, as ScanDir does, under a name that passes [xfer.CheckName]. The tree takes root over: Close closes it, and an
// error of ScanRoot too.
func ScanRoot(ctx context.Context, root *os.Root, name string, opt ScanOptions) (*Tree, error) {
	r := &rootFS{root: root}
	t, err := Scan(ctx, r, name, opt)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	t.root = r
	return t, nil
}
