//go:build linux && !(rdma && cgo)

package rdmacore

import "cinnabar/verbs/internal/uverbs"

// someAH is the handle of no object of the kernel.
var someAH ahHandle = new(uverbs.AH)
