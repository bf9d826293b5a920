//go:build rdma && linux && cgo

package rdmacore

// someAH is the handle of no object.
const someAH ahHandle = 7
